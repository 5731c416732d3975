"""Rows of stored matrices read block by block, so that a conversion needs the memory of a few blocks only.

Files are read, not mapped: mapped pages would count as memory of the process until the kernel takes them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.decode import decode_planes
from ninferd.weights.formats.minifloat import float32_of_bf16
from ninferd.weights.formats.registry import BF16, FP8_BLOCK, FP8_BLOCK_SIZE, FP8_ROW
from ninferd.weights.formats.swizzle import tile_rows, unswizzled
from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.stored import Plane, RowRun, StoredMatrix

BLOCK_ELEMENTS = 4 << 20
ROW_MULTIPLE = 128  # whole tiles of nvfp4

Planes = dict[str, NDArray[Any]]


def block_rows(columns: int) -> int:
    """Rows of a block of ``columns``."""
    return max(BLOCK_ELEMENTS // columns // ROW_MULTIPLE, 1) * ROW_MULTIPLE


def split(runs: Sequence[RowRun], rows: int) -> Iterator[tuple[RowRun, ...]]:
    """The same rows in the same order, ``rows`` at a time; the last block may have fewer."""
    block: list[RowRun] = []
    room = rows
    for run in runs:
        begin = run.begin
        while begin < run.end:
            end = min(begin + room, run.end)
            block.append(RowRun(run.matrix, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield tuple(block)
                block, room = [], rows
    if block:
        yield tuple(block)


class BlockReader:
    """Planes and values of runs of rows."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files

    def planes(self, run: RowRun) -> Planes:
        """The planes of the matrix cut to the rows of the run; nvfp4's scales in natural order."""
        matrix = run.matrix
        found = {}
        for name, plane in matrix.planes.items():
            if name == "scales" and matrix.is_swizzled:
                first, last = tile_rows(run.begin, run.end)
                found[name] = unswizzled(self._rows(plane, first, last))[run.begin - first : run.end - first]
            elif name == "scales" and matrix.format == FP8_BLOCK:
                first, last = run.begin // FP8_BLOCK_SIZE, -(-run.end // FP8_BLOCK_SIZE)
                found[name] = self._rows(plane, first, last)
            else:
                found[name] = self._rows(plane, run.begin, run.end)
        return found

    def values(self, block: Sequence[RowRun]) -> NDArray[Any]:
        """Values ``[R, K]``: bfloat16 words (uint16) if the whole block is stored so, otherwise float32."""
        if all(run.matrix.format == BF16 and not run.matrix.factors for run in block):
            return _joined([self.planes(run)["values"] for run in block])
        return _joined([self._values(run) for run in block])

    def _values(self, run: RowRun) -> NDArray[np.float32]:
        matrix = run.matrix
        planes = self.planes(run)
        if matrix.format == FP8_BLOCK:
            values = decode_planes(FP8_ROW, matrix.columns, {"codes": planes["codes"]})
            values = values * _spread(planes["scales"], run)
        else:
            values = decode_planes(matrix.format, matrix.columns, planes)
        if matrix.divisors:
            values = values / numbers_of_rows(matrix, matrix.divisors, run)[:, None]
        if matrix.factors:
            values = values * numbers_of_rows(matrix, matrix.factors, run)[:, None]
        return values.astype(np.float32, copy=False)

    def _rows(self, plane: Plane, begin: int, end: int) -> NDArray[Any]:
        row_bytes = plane.size_bytes // plane.shape[0]
        raw = np.empty((end - begin) * row_bytes, np.uint8)
        self._files.read_into(plane.part(begin * row_bytes, end * row_bytes), memoryview(raw.data))
        return raw.view(plane.dtype).reshape(end - begin, *plane.shape[1:])


def numbers_of_rows(matrix: StoredMatrix, numbers: Sequence[float], run: RowRun) -> NDArray[np.float32]:
    """Divisor or factor of each row of a run ``[R]``; there is one for all rows, or one for each of equal blocks."""
    rows = np.arange(run.begin, run.end) // (matrix.rows // len(numbers))
    return np.asarray(numbers, np.float32)[rows]


def _spread(scales: NDArray[Any], run: RowRun) -> NDArray[np.float32]:
    """The scale of every value of a run by those of its 128x128 tiles."""
    tiles = float32_of_bf16(scales) if scales.dtype == np.uint16 else scales.astype(np.float32, copy=False)
    rows = np.arange(run.begin, run.end) // FP8_BLOCK_SIZE - run.begin // FP8_BLOCK_SIZE
    return np.repeat(tiles[rows], FP8_BLOCK_SIZE, axis=1)[:, : run.matrix.columns]


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
