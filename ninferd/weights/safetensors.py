"""One safetensors file, mapped and read tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ninferd.errors import InputError

FLOAT_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class TensorInfo:
    """What the header of a file says of one tensor."""

    name: str
    dtype: str  # safetensors' spelling: F32, BF16, U8, ...
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of a float tensor in the file."""
        return prod(self.shape) * FLOAT_DTYPES[self.dtype].itemsize


class SafetensorsFile:
    """A mapped file; nothing but the header is read before ``read``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            handle: Any = safe_open(str(path), framework="pt")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: is not a readable safetensors file: {error}") from error
        self._handle = handle
        self._names: frozenset[str] = frozenset(handle.keys())

    @property
    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self._names

    def info(self, name: str) -> TensorInfo:
        """Type and shape of a tensor. Raises InputError if the file does not hold it."""
        if name not in self._names:
            raise InputError(f"{self.path}: the index puts tensor {name} here, but the file does not hold it")
        entry = self._handle.get_slice(name)
        return TensorInfo(name, entry.get_dtype(), tuple(entry.get_shape()))

    def read(self, name: str) -> torch.Tensor:
        """The tensor on the CPU, in the file's dtype."""
        try:
            tensor: torch.Tensor = self._handle.get_tensor(name)
        except SafetensorError as error:
            raise InputError(f"{self.path}: tensor {name} cannot be read: {error}") from error
        return tensor
