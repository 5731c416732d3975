"""Codes of every matrix kind as values, by table look-ups of whole bytes, which need no wide intermediates."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCK_COLUMNS = 128
"""Columns that share a scale of an Fp8BlockMatrix."""


def unscaled(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """All weights ``[N, K]`` of one matrix in ``dtype``, short of the row's multiplier.

    Exact in bfloat16 for NVFP4 and FP8 rows; the other kinds are rounded once, to ``dtype``.
    """
    match matrix:
        case DenseMatrix():
            return matrix.values.to(dtype)
        case Nvfp4Matrix():
            codes = _looked_up(matrix.codes, "e2m1", dtype)
            return _scale_groups(codes, matrix.scales.view(torch.float8_e4m3fn).to(dtype))
        case Fp8RowMatrix():
            return matrix.codes.view(torch.float8_e4m3fn).to(dtype)
        case Fp8BlockMatrix():
            return _scale_blocks(matrix.codes.view(torch.float8_e4m3fn).to(dtype), _scales_of_rows(matrix))
        case GroupedMatrix():
            return _scale_groups(_grouped_codes(matrix, dtype), matrix.scales)[:, : matrix.columns]


def row_multiplier(matrix: Matrix) -> Tensor | None:
    """What ``unscaled`` left out: float32 [N], or None."""
    return matrix.multiplier if isinstance(matrix, Nvfp4Matrix | Fp8RowMatrix) else None


def scratch_bytes_per_weight(dtype: torch.dtype) -> int:
    """What ``unscaled`` allocates at most: the values, twice where they are a sum, and int32 indices of the bytes."""
    return 2 * dtype.itemsize + 4


def _scale_groups(values: Tensor, scales: Tensor) -> Tensor:
    """Multiply, in place, equal runs of columns by their scales ``[N, groups]``; rounded once."""
    values.view(*scales.shape, values.shape[1] // scales.shape[1]).mul_(scales[..., None])
    return values


def _scales_of_rows(matrix: Fp8BlockMatrix) -> Tensor:
    return matrix.scales.index_select(0, matrix.block_of_row)


def _scale_blocks(values: Tensor, scales: Tensor) -> Tensor:
    """As ``_scale_groups``, for runs of 128 columns of which the last may be short."""
    whole = values.shape[1] // BLOCK_COLUMNS
    values[:, : whole * BLOCK_COLUMNS].view(values.shape[0], whole, BLOCK_COLUMNS).mul_(scales[:, :whole, None])
    values[:, whole * BLOCK_COLUMNS :].mul_(scales[:, whole:])
    return values


def _grouped_codes(matrix: GroupedMatrix, dtype: torch.dtype) -> Tensor:
    if matrix.bits == 8:
        return matrix.codes.view(torch.int8).to(dtype)
    if matrix.high is None:
        return _looked_up(matrix.codes, f"int{matrix.bits}", dtype)
    low, high = _looked_up(matrix.codes, "uint4", dtype), _looked_up(matrix.high, f"high{matrix.bits - 4}", dtype)
    return low.add_(high)


def _looked_up(codes: Tensor, table: str, dtype: torch.dtype) -> Tensor:
    """``[N, bytes]`` as ``[N, columns]``: each byte becomes the values of its codes."""
    words = _table(table, dtype, codes.device)
    found = words.index_select(0, codes.int().flatten())
    return found.view(codes.shape[0], codes.shape[1] * words.shape[1]).view(dtype)


@lru_cache(maxsize=64)
def _table(name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[256, n]`` integers that hold the bits of the values of every byte: a look-up copies one or a few words."""
    values = _values_of_bytes(name).to(device, dtype)
    entry_bytes = values[0].nbytes
    return values.view(torch.int32 if entry_bytes % 8 else torch.int64)


def _values_of_bytes(name: str) -> Tensor:
    """``[256, codes per byte]``, the lowest bits first."""
    if name == "e2m1":
        return torch.tensor(E2M1_VALUES)[_fields(4)]
    if name == "uint4":
        return _fields(4)
    if name.startswith("int"):
        return _signed(_fields(int(name[3:])), int(name[3:]))
    bits = int(name.removeprefix("high"))
    return 16 * _signed(_fields(bits), bits)


def _fields(bits: int) -> Tensor:
    return (torch.arange(256)[:, None] >> torch.arange(0, 8, bits)) & ((1 << bits) - 1)


def _signed(fields: Tensor, bits: int) -> Tensor:
    return fields - ((fields >> (bits - 1)) << bits)
