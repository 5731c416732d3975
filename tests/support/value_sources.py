"""What a source holds, as values, and a source of plain values: the model that a quantised one must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter, text_parameters
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import FileSpan, Plane, RowRun, StoredMatrix

Values = dict[str, NDArray[np.float32]]


def stored_values(source: ModelSource, geometry: ModelGeometry) -> Values:
    """Every text parameter in float32, matrices by the reference decoders."""
    values: Values = {}
    for each in text_parameters(geometry):
        if geometry.text.tie_word_embeddings and each.name == "text/output_head":
            continue
        if each.direct is not None:
            values[each.name] = source.array(each.name, each.shape)
        else:
            runs = source.matrix(each.name, *each.shape)
            values[each.name] = np.concatenate([decode_rows(run.matrix, run.begin, run.end) for run in runs])
    return values


def random_values(geometry: ModelGeometry, seed: int) -> Values:
    """Text parameters with no norm, gate or decay at a special value, in sizes that keep activations near 1."""
    generator = np.random.default_rng(seed)

    def scaled(parameter: Parameter) -> Any:
        u = generator.uniform(-1, 1, parameter.shape)
        kind = parameter.name.rsplit("/", 1)[1]
        if parameter.direct is None:
            return 1.5 * u / parameter.shape[1] ** 0.5
        if kind == "a_log":
            return np.log(8 + 7.5 * u)
        if kind in ("dt_bias", "convolution"):
            return 0.5 * u
        return 1 + 0.2 * u if kind == "norm" else 0.2 * u

    return {each.name: scaled(each).astype(np.float32) for each in text_parameters(geometry)}


class PlainSource:
    """Float32 values by parameter name, in one file."""

    def __init__(self, path: Path, config: dict[str, Any], values: Mapping[str, NDArray[np.float32]]) -> None:
        self.path = path
        self.config = config
        self._values = values
        self._matrices: dict[str, StoredMatrix] = {}
        offset = 0
        with path.open("wb") as file:
            for name, array in values.items():
                if array.ndim == 2:
                    plane = Plane("<f4", array.shape, (FileSpan(path, offset, array.nbytes),))
                    self._matrices[name] = StoredMatrix(
                        name, path, "fp32", array.shape[0], array.shape[1], {"values": plane}
                    )
                    offset += file.write(np.ascontiguousarray(array, "<f4").tobytes())

    def resource(self, name: str) -> bytes | None:
        return None

    def has(self, parameter: str) -> bool:
        return parameter in self._values

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        matrix = self._matrices[parameter]
        assert (matrix.rows, matrix.columns) == (rows, columns)
        return (RowRun(matrix, 0, rows),)

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        assert self._values[parameter].shape == shape

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        assert self._values[parameter].shape == shape
        return self._values[parameter]

    def require_no_others(self, known: frozenset[str]) -> None:
        assert self._values.keys() <= known
