"""Products with weights of every kind, and rows of an embedding."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from kernels_numba.matrices import DenseMatrix, Matrix, joined
from kernels_numba.shapes import PackedLinear
from kernels_numba.torch_ops.decoding import row_multiplier, scratch_bytes_per_weight, unscaled

SCRATCH_BYTES = 256 << 20
"""Bound of what one product decodes at a time."""


def pack_linear(*matrices: Matrix) -> PackedLinear:
    """The order of the matrices as they are."""
    return PackedLinear(joined(matrices))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    segments = cast(tuple[Matrix, ...], packed.segments)
    first = segments[0]
    if len(segments) == 1 and isinstance(first, DenseMatrix) and first.values.dtype == x.dtype:
        return functional.linear(x, first.values)
    out = x.new_empty(x.shape[0], packed.outputs)
    begin = 0
    for segment in segments:
        multiply(x, segment, out[:, begin : begin + segment.rows])
        begin += segment.rows
    return out


def multiply(x: Tensor, matrix: Matrix, out: Tensor) -> None:
    """``out[:] = x @ matrix.T``, some thousand rows at a time: no more than ``SCRATCH_BYTES`` are decoded at once."""
    if row_multiplier(matrix) is not None and not x.is_cuda:
        x = x.float()  # only CUDA has products of bfloat16 that are not rounded before the multiplier
    row_bytes = matrix.columns * scratch_bytes_per_weight(x.dtype)
    block_rows = max(1, SCRATCH_BYTES // row_bytes)
    for begin in range(0, matrix.rows, block_rows):
        rows = slice(begin, begin + block_rows)
        block = matrix.select_rows(rows)
        weights, multiplier = unscaled(block, x.dtype).T, row_multiplier(block)
        if multiplier is None:
            torch.mm(x, weights, out=out[:, rows])
        else:
            torch.mul(_product32(x, weights), multiplier, out=out[:, rows])


def _product32(x: Tensor, weights: Tensor) -> Tensor:
    return x @ weights if x.dtype == torch.float32 else torch.mm(x, weights, out_dtype=torch.float32)


def embedding(token_ids: Tensor, matrix: Matrix, dtype: torch.dtype) -> Tensor:
    if isinstance(matrix, DenseMatrix):
        return functional.embedding(token_ids, matrix.values).to(dtype)
    rows = matrix.select_rows(token_ids)
    values = unscaled(rows, torch.float32)
    multiplier = row_multiplier(rows)
    return (values if multiplier is None else values * multiplier[:, None]).to(dtype)
