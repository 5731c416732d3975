"""A Hugging Face checkpoint directory: config.json and safetensors shards under canonical tensor names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ninferd.errors import InputError
from ninferd.weights.json_file import read_json_object
from ninferd.weights.safetensors import FLOAT_DTYPES, SafetensorsFile, TensorInfo

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
TEXT_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")


def canonical_name(name: str) -> str:
    """Tensor name without the wrapper's prefix: ``layers.0...``, ``embed_tokens.weight``, ``lm_head.weight``."""
    for prefix in TEXT_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


class Checkpoint:
    """All tensors of a directory; the model takes each one it knows, and what is left over is an error."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = read_json_object(directory / "config.json", MAX_CONFIG_BYTES)
        _refuse_quantised_config(self.config, directory / "config.json")
        self._tensors: dict[str, tuple[SafetensorsFile, TensorInfo]] = {}
        for file, name in _locate_tensors(directory):
            self._add(file, file.info(name))
        self._taken: set[str] = set()
        self._ignored: set[str] = set()

    def _add(self, file: SafetensorsFile, info: TensorInfo) -> None:
        name = canonical_name(info.name)
        if name in self._tensors:
            other_file, other = self._tensors[name]
            raise InputError(f"{file.path}: tensor {info.name} is the same as {other.name} in {other_file.path}")
        self._tensors[name] = (file, info)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def ignore(self, prefix: str) -> None:
        """Leave out every tensor whose canonical name starts with ``prefix``."""
        self._ignored.update(name for name in self._tensors if name.startswith(prefix))

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a canonical name, on the CPU, in the file's dtype.

        Raises InputError naming tensor and file if it is missing, has another shape or is quantised.
        """
        if name not in self._tensors:
            raise InputError(f"{self.directory}: tensor {name} {list(shape)} is missing")
        file, info = self._tensors[name]
        if info.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"{file.path}: tensor {info.name} has type {info.dtype}: "
                "quantised checkpoints are not available in this build"
            )
        if info.shape != shape:
            raise InputError(f"{file.path}: tensor {info.name} has shape {list(info.shape)}, expected {list(shape)}")
        self._taken.add(name)
        return file.read(info.name)

    @property
    def total_bytes(self) -> int:
        """Size of all float tensors that are not ignored."""
        return sum(
            info.size_bytes
            for name, (_, info) in self._tensors.items()
            if name not in self._ignored and info.dtype in FLOAT_DTYPES
        )

    def require_all_taken(self) -> None:
        """Raises InputError naming the tensors that nobody took or ignored."""
        rest = sorted(self._tensors.keys() - self._taken - self._ignored)
        if rest:
            shown = ", ".join(rest[:5]) + (f" and {len(rest) - 5} more" if len(rest) > 5 else "")
            raise InputError(f"{self.directory}: unexpected tensors: {shown}")


def _refuse_quantised_config(config: dict[str, Any], path: Path) -> None:
    text_config = config.get("text_config")
    for table in (config, text_config if isinstance(text_config, dict) else {}):
        quantisation = table.get("quantization_config")
        if quantisation is not None:
            method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
            raise InputError(f"{path}: quantised checkpoints ({method}) are not available in this build")


def _locate_tensors(directory: Path) -> list[tuple[SafetensorsFile, str]]:
    index = directory / INDEX_NAME
    if index.is_file():
        return _from_index(index)
    single = directory / SINGLE_NAME
    if not single.is_file():
        raise InputError(f"{directory}: holds neither {INDEX_NAME} nor {SINGLE_NAME}")
    file = SafetensorsFile(single)
    return [(file, name) for name in sorted(file.names)]


def _from_index(index: Path) -> list[tuple[SafetensorsFile, str]]:
    weight_map = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: weight_map must be an object that maps tensor names to file names")
    shards: dict[str, SafetensorsFile] = {}
    located = []
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise InputError(f"{index}: the file of tensor {name} must be a plain file name, not {shard!r}")
        if shard not in shards:
            shards[shard] = SafetensorsFile(index.parent / shard)
        located.append((shards[shard], name))
    for shard, file in shards.items():
        for name in file.names:
            if weight_map.get(name) != shard:
                raise InputError(f"{file.path}: tensor {name} is not in {index.name}")
    return located
