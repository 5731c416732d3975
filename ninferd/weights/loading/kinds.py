"""The layout of every kind of matrix. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.registry import (
    BF16,
    FP8_BLOCK,
    FP8_BLOCK_SIZE,
    FP8_ROW,
    FP16,
    FP32,
    FP64,
    GROUPED,
    NVFP4,
    NVFP4_BLOCK,
    NVFP4_TILE_ROWS,
)
from ninferd.weights.formats.swizzle import unswizzled
from ninferd.weights.loading.layout import (
    DENSE,
    Copy,
    DenseDtype,
    Fill,
    MatrixLayout,
    StackedRuns,
    TensorSpec,
    row_copy,
)
from ninferd.weights.stored import RowRun

_DENSE_FORMATS = frozenset({BF16, FP16, FP32, FP64})


def kind_of(run: RowRun) -> str:
    """What runs must have in common to become one matrix: their format, or DENSE for plain values.

    Raises InputError for a format that no matrix can have.
    """
    format = run.matrix.format
    if format in _DENSE_FORMATS:
        return DENSE
    if format in _BUILDERS:
        return format
    raise InputError(f"{run.matrix.path}: {run.matrix.name} is stored as {format}, which no matrix can be loaded from")


def lay_out(kind: str, runs: StackedRuns, dense: DenseDtype) -> MatrixLayout:
    """The layout of runs of one kind (see :func:`kind_of`)."""
    if kind == DENSE:
        values = TensorSpec(dense, (*runs.row_shape, runs.columns))
        return MatrixLayout(DENSE, runs.columns, {"values": values}, runs.row_copies("values", "values", runs.columns))
    return _BUILDERS[kind](kind, runs)


def _nvfp4(format: str, runs: StackedRuns) -> MatrixLayout:
    across = runs.columns // NVFP4_BLOCK
    tensors = {
        "codes": TensorSpec("u1", (*runs.row_shape, runs.columns // 2)),
        "scales": TensorSpec("u1", (*runs.row_shape, across)),
        "multiplier": TensorSpec("<f4", runs.row_shape),
    }
    copies = list(runs.row_copies("codes", "codes", runs.columns // 2))
    fills, swizzled = [], []
    for first, run in runs.placed:
        fills.append(Fill("multiplier", first, partial(_multiplier, run)))
        if run.matrix.is_swizzled and (run.begin % NVFP4_TILE_ROWS or run.end % NVFP4_TILE_ROWS):
            fills.append(Fill("scales", first * across, partial(_rows_of_tiles, run)))
            continue
        copies.append(row_copy(run, run.matrix.planes["scales"], "scales", first, across))
        if run.matrix.is_swizzled:
            swizzled.append((first, first + run.rows))
    return MatrixLayout(format, runs.columns, tensors, tuple(copies), tuple(fills), tuple(swizzled))


def _multiplier(run: RowRun) -> NDArray[np.float32]:
    """The factor of each row; a divisor is inverted with one rounding."""
    matrix = run.matrix
    if matrix.divisors:
        numbers = (1 / np.asarray(matrix.divisors, np.float32).astype(np.float64)).astype(np.float32)
    else:
        numbers = np.asarray(matrix.factors or (1.0,), np.float32)
    return numbers[np.arange(run.begin, run.end) // (matrix.rows // len(numbers))]


def _rows_of_tiles(run: RowRun) -> NDArray[np.uint8]:
    """Scales of rows that do not begin and end with a tile of 128 rows."""
    first = run.begin // NVFP4_TILE_ROWS * NVFP4_TILE_ROWS
    last = -(-run.end // NVFP4_TILE_ROWS) * NVFP4_TILE_ROWS
    return unswizzled(run.matrix.planes["scales"].array()[first:last])[run.begin - first :][: run.rows]


def _fp8_row(format: str, runs: StackedRuns) -> MatrixLayout:
    tensors = {
        "codes": TensorSpec("u1", (*runs.row_shape, runs.columns)),
        "multiplier": TensorSpec("<f4", runs.row_shape),
    }
    copies = list(runs.row_copies("codes", "codes", runs.columns))
    fills = []
    for first, run in runs.placed:
        if (scales := run.matrix.planes.get("scales")) is not None:
            copies.append(row_copy(run, scales, "multiplier", first, 1))
        else:
            fills.append(Fill("multiplier", first, partial(_multiplier, run)))
    return MatrixLayout(format, runs.columns, tensors, tuple(copies), tuple(fills))


def _fp8_block(format: str, runs: StackedRuns) -> MatrixLayout:
    """Every run brings the rows of scales that it touches; matrices of a stack have room for as many as any needs."""
    across = -(-runs.columns // FP8_BLOCK_SIZE)
    block_rows = max(sum(_touched(run) for run in matrix) for matrix in runs.matrices)
    tensors = {
        "codes": TensorSpec("u1", (*runs.row_shape, runs.columns)),
        "scales": TensorSpec("<f4", (*runs.row_shape[:-1], block_rows, across)),
        "block_of_row": TensorSpec("<i4", runs.row_shape),
    }
    copies = list(runs.row_copies("codes", "codes", runs.columns))
    fills, first_row = [], 0
    for index, matrix in enumerate(runs.matrices):
        block = 0
        for run in matrix:
            copies.append(_block_scales(run, index * block_rows + block, across))
            fills.append(Fill("block_of_row", first_row, partial(_block_numbers, run, block)))
            block, first_row = block + _touched(run), first_row + run.rows
    return MatrixLayout(format, runs.columns, tensors, tuple(copies), tuple(fills))


def _touched(run: RowRun) -> int:
    """Rows of 128x128 blocks that a run has a part in."""
    return -(-run.end // FP8_BLOCK_SIZE) - run.begin // FP8_BLOCK_SIZE


def _block_scales(run: RowRun, block: int, across: int) -> Copy:
    first = run.begin // FP8_BLOCK_SIZE
    blocks = RowRun(run.matrix, first, first + _touched(run))
    return row_copy(blocks, run.matrix.planes["scales"], "scales", block, across)


def _block_numbers(run: RowRun, block: int) -> NDArray[np.int32]:
    rows = np.arange(run.begin, run.end, dtype=np.int32)
    return rows // FP8_BLOCK_SIZE - np.int32(run.begin // FP8_BLOCK_SIZE) + np.int32(block)


def _grouped(format: str, runs: StackedRuns) -> MatrixLayout:
    kind = GROUPED[format]
    groups = kind.groups(runs.columns)
    sizes = {
        "codes": ("u1", groups * kind.codes_bytes),
        "high": ("u1", groups * kind.high_bytes),
        "scales": ("<f2", groups),
    }
    tensors: dict[str, TensorSpec] = {}
    copies: list[Copy] = []
    for name, (dtype, per_row) in sizes.items():
        if per_row:
            tensors[name] = TensorSpec(dtype, (*runs.row_shape, per_row))
            copies += runs.row_copies(name, name, per_row)
    return MatrixLayout(format, runs.columns, tensors, tuple(copies))


_BUILDERS: Mapping[str, Callable[[str, StackedRuns], MatrixLayout]] = {
    NVFP4: _nvfp4,
    FP8_ROW: _fp8_row,
    FP8_BLOCK: _fp8_block,
    **dict.fromkeys(GROUPED, _grouped),
}
