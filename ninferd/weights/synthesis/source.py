"""A synthetic model as a source that the loader fills tensors from, straight on a device and without a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninferd.errors import InputError
from ninferd.weights.convert.choices import aliases
from ninferd.weights.formats.encoders import Encoders
from ninferd.weights.formats.minifloat import float32_of_bf16
from ninferd.weights.formats.registry import BF16, FP8_ROW, NVFP4, plane_layout
from ninferd.weights.formats.swizzle import unswizzled
from ninferd.weights.loading.layout import MatrixLayout
from ninferd.weights.parameters.component_configs import component_configs_of
from ninferd.weights.parameters.huggingface_config import huggingface_config
from ninferd.weights.parameters.registry import parameters
from ninferd.weights.stored import FileSpan, Plane, RowRun, StoredMatrix
from ninferd.weights.synthesis.model import SyntheticModel
from ninferd.weights.synthesis.pool import BLOCK_ROWS, PoolKey, RowPool, make_pool, pool_rows
from ninferd.weights.synthesis.statistics import direct_values, matrix_sigma


class SyntheticSource:
    """``ModelSource`` of a :class:`SyntheticModel`; its matrices are drawn by :meth:`generate`.

    The weights have the distribution of those of the model's artifact, but are not the same numbers.
    """

    def __init__(self, model: SyntheticModel, encoders: Encoders) -> None:
        self.geometry = model.geometry
        self._model = model
        self._encoders = encoders
        self._parameters = {parameter.name: parameter for parameter in parameters(self.geometry)}
        self._targets = aliases(self.geometry, model.recipe)
        self._pools: dict[tuple[PoolKey, torch.device], _DevicePool] = {}

    @property
    def path(self) -> Path:
        return Path(f"synthetic:{self._model.name}:{self._model.recipe.name}")

    @property
    def config(self) -> dict[str, Any]:
        configs = component_configs_of(self.geometry)
        return huggingface_config({name: configs[name] for name in ("text", "vision", "mtp") if name in configs})

    def resource(self, name: str) -> bytes | None:
        return self._model.frontend.get(name)

    def has(self, parameter: str) -> bool:
        return parameter in self._parameters

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        """Rows whose spans name the parameter in place of a file."""
        self._require(parameter, (rows, columns))
        name = self._targets.get(parameter, parameter)
        format = self._model.choices[name].format
        planes = {
            spec.name: Plane(spec.dtype, spec.shape, (FileSpan(Path(name), 0, spec.size_bytes),))
            for spec in plane_layout(format, (rows, columns))
            if spec.name != "divisors"
        }
        return (RowRun(StoredMatrix(name, self.path, format, rows, columns, planes), 0, rows),)

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        self._require(parameter, shape)

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        self._require(parameter, shape)
        found = self._parameters[parameter]
        return direct_values(found, self._model.token_count, self._model.generator(parameter))

    def require_no_others(self, known: frozenset[str]) -> None:
        loaded = {name.split("/", 1)[0] for name in known}
        rest = [name for name in self._parameters if name.split("/", 1)[0] in loaded and name not in known]
        if rest:
            raise InputError(f"{self.path}: unexpected parameters: {', '.join(rest[:5])}")

    def generate(self, layout: MatrixLayout, tensors: Mapping[str, Tensor]) -> None:
        """Fill the tensors of a layout: turns of a pool, one below the other."""
        name = str(layout.copies[0].spans[0].path)
        format = BF16 if "values" in tensors else layout.format
        key = PoolKey(format, layout.columns, matrix_sigma(self._parameters[name], self.geometry))
        flat = {plane: tensor.flatten(0, -1 if plane == "multiplier" else -2) for plane, tensor in tensors.items()}
        rows = len(next(iter(flat.values())))
        pool = self._pool(key, next(iter(tensors.values())).device)
        generator = self._model.generator(name)
        for begin in range(0, rows, pool.rows):
            down, across = (int(generator.integers(count)) for count in pool.turns)
            for plane, tensor in flat.items():
                target = tensor[begin : begin + pool.rows]
                target.copy_(pool.turned(plane, down, across)[: len(target)])

    def _pool(self, key: PoolKey, device: torch.device) -> _DevicePool:
        if (key, device) not in self._pools:
            rows = pool_rows(key.columns, self._most_rows(key))
            self._pools[key, device] = _DevicePool(make_pool(key, rows, self._encoders, self._model.seed), device)
        return self._pools[key, device]

    def _most_rows(self, key: PoolKey) -> int:
        shapes = [weight.record.shape for weight in self._model.inventory.weights]
        return max(shape[0] for shape in shapes if shape[1:] == (key.columns,))

    def _require(self, parameter: str, shape: tuple[int, ...]) -> None:
        found = self._parameters.get(parameter)
        if found is None or found.shape != shape:
            has = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise InputError(f"{self.path}: parameter {parameter} {list(shape)} {has}")


class _DevicePool:
    """The planes of a pool on a device, as the fields of ``kernels_numba.matrices``."""

    def __init__(self, pool: RowPool, device: torch.device) -> None:
        self.rows = pool.rows
        self.turns = pool.turns
        planes = dict(pool.planes)
        if pool.key.format == NVFP4:
            planes["scales"] = unswizzled(planes["scales"])
            planes["multiplier"] = np.full(pool.rows, np.float32(1 / pool.divisor), np.float32)
        if pool.key.format == FP8_ROW:
            planes["multiplier"] = float32_of_bf16(planes.pop("scales"))
        self._planes = {name: torch.from_numpy(plane).to(device) for name, plane in planes.items()}
        if pool.key.format == BF16:
            self._planes["values"] = self._planes["values"].view(torch.bfloat16)

    def turned(self, plane: str, down: int, across: int) -> Tensor:
        """All rows of a plane, turned."""
        tensor = self._planes[plane]
        blocks, runs = self.turns
        if tensor.dim() == 1:
            return torch.roll(tensor, down * BLOCK_ROWS)
        blocked = tensor.view(blocks, BLOCK_ROWS, runs, -1)
        return torch.roll(blocked, (down, across), (0, 2)).view(tensor.shape)
