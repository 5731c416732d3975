"""Tensor formats of artifacts and Hugging Face directories: names, layouts, planes, sizes. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ninferd.errors import InputError

BF16 = "bf16"
FP32 = "fp32"
INT32 = "int32"
Q4 = "q4_g64_fp16"
Q5 = "q5_g64_fp16"
Q6 = "q6_g64_fp16"
Q8 = "q8_g32_fp16"
T2 = "t2_g128_fp16"
NVFP4 = "nvfp4"
FP8_ROW = "fp8_e4m3fn_row_bf16"

FP16 = "fp16"  # this and the following only in Hugging Face directories
FP64 = "fp64"
FP8_BLOCK = "fp8_e4m3fn_block128"

CONTIGUOUS = "contiguous_le_v1"
ROW_SPLIT = "row_split_k128_v1"
BLOCK_SCALE = "block_scale_k16_m128x4_v1"
ROW_SCALE = "row_scale_v1"

LAYOUT_OF: Mapping[str, str] = MappingProxyType(
    {
        BF16: CONTIGUOUS,
        FP32: CONTIGUOUS,
        INT32: CONTIGUOUS,
        Q4: ROW_SPLIT,
        Q5: ROW_SPLIT,
        Q6: ROW_SPLIT,
        Q8: ROW_SPLIT,
        T2: ROW_SPLIT,
        NVFP4: BLOCK_SCALE,
        FP8_ROW: ROW_SCALE,
    }
)
"""The formats that an artifact may hold, each with the only layout that goes with it."""

PLANE_ALIGNMENT_BYTES = 256
"""Objects start at multiples of this in the payload, planes at multiples of it in their object."""

MAX_RANK = 16
NVFP4_BLOCK = 16  # columns that share a scale
NVFP4_TILE_ROWS = 128
NVFP4_TILE_COLUMNS = 64
FP8_BLOCK_SIZE = 128
GROUPED_COLUMN_MULTIPLE = 128  # K is padded to it

_U64_LIMIT = 1 << 64


@dataclass(frozen=True)
class GroupedFormat:
    """Signed integers of ``bits`` bits; ``group`` columns share one fp16 scale."""

    bits: int
    group: int
    high_bytes: int  # per group, beside the 32 bytes of every group in the plane ``codes``
    largest: int  # code that the largest magnitude of a group is encoded as
    smallest: int  # smallest code that an encoder writes

    @property
    def codes_bytes(self) -> int:
        """Bytes of a group in the plane ``codes``: all bits, or the low four of q5 and q6."""
        return 32

    def groups(self, columns: int) -> int:
        """Groups of a row, those of the padding included."""
        return padded(columns, GROUPED_COLUMN_MULTIPLE) // self.group


GROUPED: Mapping[str, GroupedFormat] = MappingProxyType(
    {
        Q4: GroupedFormat(4, 64, 0, 7, -8),
        Q5: GroupedFormat(5, 64, 8, 15, -16),
        Q6: GroupedFormat(6, 64, 16, 31, -32),
        Q8: GroupedFormat(8, 32, 0, 127, -127),
        T2: GroupedFormat(2, 128, 0, 1, -1),
    }
)

_DIRECT: Mapping[str, tuple[str, int]] = {
    BF16: ("<u2", 2),
    FP32: ("<f4", 4),
    INT32: ("<i4", 4),
}
_DENSE_MATRICES = frozenset({BF16, FP16, FP32, FP64})

_FOREIGN = {
    "nvfp4_mul": "a variant of nvfp4 for expert banks with multipliers, whose inner order is not public",
    "fp8_e4m3fn_block128_f32": "FP8 in 128x128 tiles, which only a Hugging Face directory can be read from",
    "exl3": "a format of ExLlamaV3",
    "u4z8_g16_fp16": "unsigned 4-bit codes in groups of 16, of another engine",
    "TERNARY_PQ2_0": "a ternary format of another engine",
}


@dataclass(frozen=True)
class PlaneSpec:
    """One array of an encoded tensor, in C order; ``dtype`` is numpy's spelling (bfloat16 ``<u2``, codes ``u1``)."""

    name: str  # as in StoredMatrix.planes
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the object
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


def padded(size: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``size``."""
    return -(-size // multiple) * multiple


def require_pair(format: str, layout: str) -> None:
    """InputError unless an artifact may hold ``format`` in ``layout``."""
    expected = LAYOUT_OF.get(format)
    if expected is None:
        raise InputError(_unknown(format))
    if layout != expected:
        raise InputError(f"format {format} goes with layout {expected}, not {layout!r}")


def plane_layout(format: str, shape: tuple[int, ...], divisors: int = 1) -> tuple[PlaneSpec, ...]:
    """Planes of an artifact's tensor, in file order; the last one ends the object, without padding.

    Direct formats have ``values`` of the tensor's own shape (rank 0 to 16). Matrices ``[N, K]`` have ``codes``, for q5
    and q6 ``high``, and ``scales`` (nvfp4: swizzled); nvfp4 then has ``divisors``: one, or one for each of so many
    equally high row blocks. InputError if the format is not one of artifacts, or cannot have this shape.
    """
    build = _BUILDERS.get(LAYOUT_OF.get(format, ""))
    if build is None:
        raise InputError(_unknown(format))
    if len(shape) > MAX_RANK or any(size < 1 for size in shape) or prod(shape) >= _U64_LIMIT:
        raise InputError(
            f"shape {list(shape)} is not possible: at most {MAX_RANK} sizes, each at least 1, product below 2^64"
        )
    if format not in _DIRECT and len(shape) != 2:
        raise InputError(f"format {format} holds matrices [rows, columns], not shape {list(shape)}")
    if divisors != 1 and format != NVFP4:
        raise InputError(f"format {format} has no divisors (found {divisors}), only nvfp4 has")
    return build(format, shape, divisors)


def encoded_bytes(format: str, shape: tuple[int, ...], divisors: int = 1) -> int:
    """Size of an artifact's tensor object; errors as :func:`plane_layout`."""
    return plane_layout(format, shape, divisors)[-1].end


def execution_bytes(format: str, rows: int, columns: int, dense_element_bytes: int) -> int:
    """Bytes of a matrix on a device, as the kinds of ``kernels_numba.matrices``; plain values take the given width."""
    if format in _DENSE_MATRICES:
        return rows * columns * dense_element_bytes
    if format == NVFP4:
        return rows * columns // 2 + rows * columns // NVFP4_BLOCK + 4 * rows
    if format == FP8_ROW:
        return rows * columns + 4 * rows
    if format == FP8_BLOCK:
        tiles = -(-rows // FP8_BLOCK_SIZE) * -(-columns // FP8_BLOCK_SIZE)
        return rows * columns + 4 * tiles + 4 * rows
    if format in GROUPED:
        kind = GROUPED[format]
        return rows * kind.groups(columns) * (kind.codes_bytes + kind.high_bytes + 2)
    raise InputError(f"format {format!r} is not one of matrices")


def _unknown(format: str) -> str:
    if format in (FP16, FP64, FP8_BLOCK):
        return f"format {format} occurs only in Hugging Face directories, not in artifacts"
    foreign = _FOREIGN.get(format) or ("ggml blocks of another engine" if format.startswith("gguf_") else None)
    if foreign is not None:
        return f"format {format} is {foreign}: ninferd cannot use it; convert the original checkpoint instead"
    return f"format {format!r} is unknown; known are {', '.join(LAYOUT_OF)}"


def _direct(format: str, shape: tuple[int, ...], _divisors: int) -> tuple[PlaneSpec, ...]:
    dtype, width = _DIRECT[format]
    return (PlaneSpec("values", dtype, shape, 0, prod(shape) * width),)


def _grouped(format: str, shape: tuple[int, ...], _divisors: int) -> tuple[PlaneSpec, ...]:
    rows, columns = shape
    kind = GROUPED[format]
    groups = kind.groups(columns)
    planes = [("codes", "u1", groups * kind.codes_bytes, 1)]
    if kind.high_bytes:
        planes.append(("high", "u1", groups * kind.high_bytes, 1))
    planes.append(("scales", "<f2", groups, 2))
    return _placed([(name, dtype, (rows, per_row), rows * per_row * width) for name, dtype, per_row, width in planes])


def _nvfp4(format: str, shape: tuple[int, ...], divisors: int) -> tuple[PlaneSpec, ...]:
    rows, columns = shape
    if rows % NVFP4_TILE_ROWS or columns % NVFP4_TILE_COLUMNS:
        raise InputError(
            f"format {format} needs rows in multiples of {NVFP4_TILE_ROWS} and columns in multiples of "
            f"{NVFP4_TILE_COLUMNS}, not shape {list(shape)}"
        )
    if divisors < 1 or rows % divisors or rows // divisors % NVFP4_TILE_ROWS:
        raise InputError(
            f"{divisors} divisors do not cut {rows} rows into equal blocks of a multiple of {NVFP4_TILE_ROWS}"
        )
    codes = PlaneSpec("codes", "u1", (rows, columns // 2), 0, rows * columns // 2)
    scales_at = padded(codes.end, PLANE_ALIGNMENT_BYTES)
    scales = PlaneSpec("scales", "u1", (rows, columns // NVFP4_BLOCK), scales_at, rows * columns // NVFP4_BLOCK)
    return codes, scales, PlaneSpec("divisors", "<f4", (divisors,), scales.end, 4 * divisors)


def _fp8_row(_format: str, shape: tuple[int, ...], _divisors: int) -> tuple[PlaneSpec, ...]:
    rows, columns = shape
    return _placed([("codes", "u1", (rows, columns), rows * columns), ("scales", "<u2", (rows,), 2 * rows)])


def _placed(planes: list[tuple[str, str, tuple[int, ...], int]]) -> tuple[PlaneSpec, ...]:
    placed: list[PlaneSpec] = []
    offset = 0
    for name, dtype, shape, size_bytes in planes:
        placed.append(PlaneSpec(name, dtype, shape, offset, size_bytes))
        offset = padded(offset + size_bytes, PLANE_ALIGNMENT_BYTES)
    return tuple(placed)


_BUILDERS: Mapping[str, Callable[[str, tuple[int, ...], int], tuple[PlaneSpec, ...]]] = {
    CONTIGUOUS: _direct,
    ROW_SPLIT: _grouped,
    BLOCK_SCALE: _nvfp4,
    ROW_SCALE: _fp8_row,
}
