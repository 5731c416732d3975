"""Memory that loaded weights keep: for a GPU as stored, for the CPU as its kernels lay them out. Free of torch.

The CPU's tiles are those of ``kernels_numba.cpu.tiles``; a test holds both to the same number.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ninferd.weights.formats.registry import FP8_BLOCK, FP8_BLOCK_SIZE, FP8_ROW
from ninferd.weights.loading.layout import DENSE, MatrixLayout
from ninferd.weights.loading.plan import EMBEDDING, HEAD
from ninferd.weights.loading.resolve import ResolvedMatrix, ResolvedPlan

_TILE_ROWS = 64
_STEP_COLUMNS = 8


def resident_bytes(plan: ResolvedPlan, *, in_tiles: bool) -> int:
    """What the weights take once loaded, to the byte; ``in_tiles`` on the CPU in float32.

    Plain weights that are stored with more than 16 bits count as float32 in tiles, which is too much where bfloat16
    holds every value of a matrix exactly.
    """
    if not in_tiles:
        return plan.device_bytes
    matrices = {matrix.key: matrix for matrix in plan.matrices}
    embedding = matrices.pop(EMBEDDING)
    head = matrices.pop(HEAD, embedding)
    arrays = sum(4 * prod(each.shape) for each in plan.arrays)
    return arrays + embedding.device_bytes + sum(map(_tiled_bytes, [*matrices.values(), head]))


def _tiled_bytes(matrix: ResolvedMatrix) -> int:
    return sum(map(_tiled_layout_bytes, matrix.layouts))


def _tiled_layout_bytes(layout: MatrixLayout) -> int:
    *stack, rows, _ = layout.tensors["values" if layout.format == DENSE else "codes"].shape
    row_bytes = sum(_row_bytes(layout, name) for name in layout.tensors)
    return prod(stack) * _padded(rows, _TILE_ROWS) * row_bytes


def _row_bytes(layout: MatrixLayout, name: str) -> int:
    spec = layout.tensors[name]
    width = spec.shape[-1] * np.dtype(spec.dtype).itemsize
    if name == "values":
        is_bfloat16 = all(copy.dtype == "<u2" for copy in layout.copies)
        return _padded(layout.columns, _STEP_COLUMNS) * (2 if is_bfloat16 else 4)
    if name == "codes" and layout.format in (FP8_ROW, FP8_BLOCK):
        return _padded(width, _STEP_COLUMNS)
    if name == "scales" and layout.format == FP8_BLOCK:  # there for every row, not for every block of rows
        return 4 * -(-layout.columns // FP8_BLOCK_SIZE)
    if name == "multiplier":
        return 4
    return 0 if name == "block_of_row" else width


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
