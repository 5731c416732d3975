"""The header of a safetensors file: which tensors it holds and where their bytes lie. Free of torch.

A file is 8 bytes (the header's length), a JSON object of names, then the tensors' bytes; the format is that of
huggingface/safetensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.strict_json import StrictJsonError, parse_strict
from ninferd.weights.artifact.text import plain, shown
from ninferd.weights.stored import FileSpan

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_RANK = 16
MAX_SIZE = 2**63 - 1
_LENGTH_BYTES = 8
_METADATA = "__metadata__"

_ELEMENT_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: C order, little-endian."""

    name: str  # as in the file
    dtype: str  # safetensors' spelling: F32, BF16, U8, F8_E4M3, ...
    shape: tuple[int, ...]
    span: FileSpan

    @property
    def where(self) -> str:
        """File and tensor, for messages."""
        return f"{self.span.path}: tensor {plain(self.name)}"


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of a file by name; reads nothing but the header.

    Raises InputError naming the file if it is not a safetensors file, if sizes, types and offsets of a tensor do not
    fit each other, if tensors overlap, or if the file is shorter or longer than its header says.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            header, data_start, file_bytes = _read_json(path, file)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in header.items() if name != _METADATA}
    _require_disjoint(path, tensors, data_start, file_bytes)
    return tensors


def _read_json(path: Path, file: BinaryIO) -> tuple[dict[str, Any], int, int]:
    """(header, offset of the data, size of the file)."""
    file_bytes = os.fstat(file.fileno()).st_size
    raw_length = file.read(_LENGTH_BYTES)
    if len(raw_length) < _LENGTH_BYTES:
        raise InputError(f"{path}: is not a safetensors file: {file_bytes} bytes long")
    length = int.from_bytes(raw_length, "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
        raise InputError(
            f"{path}: is not a safetensors file: header of {length} bytes in a file of {file_bytes} "
            f"(at most {MAX_HEADER_BYTES})"
        )
    try:
        header = parse_strict(file.read(length))
    except StrictJsonError as error:
        raise InputError(f"{path}: is not a safetensors file: its header {error}") from None
    if not isinstance(header, dict):
        raise InputError(f"{path}: is not a safetensors file: its header is {shown(header)}, not an object")
    return header, _LENGTH_BYTES + length, file_bytes


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape, begin, end = _entry(entry)
    except _EntryError as error:
        raise InputError(f"{path}: tensor {plain(name)}: {error}") from None
    return StoredTensor(name, dtype, shape, FileSpan(path, data_start + begin, end - begin))


class _EntryError(ValueError):
    """Why the description of a tensor is refused, in one line."""


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of a description whose parts fit each other."""
    if not isinstance(entry, dict):
        raise _EntryError(f"its header entry must be an object, not {shown(entry)}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str):
        raise _EntryError(f"dtype must be a string, not {shown(dtype)}")
    shape = _sizes(entry, "shape")
    if len(shape) > MAX_RANK or prod(shape) > MAX_SIZE:
        raise _EntryError(f"shape {shown(list(shape))} is not possible")
    offsets = _sizes(entry, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _EntryError(f"data_offsets must be [begin, end], not {list(offsets[:3])}")
    begin, end = offsets
    elements = prod(shape)
    bits = _ELEMENT_BITS.get(dtype)  # a type that nobody asks for may be unknown
    if bits is not None and elements * bits != 8 * (end - begin):
        raise _EntryError(
            f"{end - begin} bytes at data_offsets [{begin}, {end}], but {dtype} {list(shape)} takes "
            f"{elements * bits // 8}"
        )
    return dtype, shape, begin, end


def _sizes(entry: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = entry.get(key)
    if isinstance(values, list):
        for value in values:
            if type(value) is not int or not 0 <= value <= MAX_SIZE:
                break
        else:
            return tuple(values)
    raise _EntryError(f"{key} must be a list of sizes, not {shown(values)}")


def _require_disjoint(path: Path, tensors: Mapping[str, StoredTensor], data_start: int, file_bytes: int) -> None:
    end, last = data_start, ""
    for tensor in sorted(tensors.values(), key=lambda each: (each.span.offset, each.span.size_bytes)):
        if tensor.span.offset < end:
            raise InputError(f"{tensor.where} overlaps {plain(last)}: it begins at byte {tensor.span.offset}")
        end, last = tensor.span.offset + tensor.span.size_bytes, tensor.name
    if file_bytes < end:
        raise InputError(f"{path}: is cut short: {file_bytes} bytes, its header needs {end}")
    if file_bytes > end:
        raise InputError(f"{path}: is {file_bytes} bytes long, but its header describes only {end}")
