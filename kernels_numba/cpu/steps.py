"""Eight columns of a tile at a time: decoded into memory, or multiplied without being written anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from kernels_numba.cpu.formats import FORMATS
from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.products import ROWS, add_products_of_four, add_products_of_one
from kernels_numba.cpu.tiles import STEP_COLUMNS, TILE
from kernels_numba.cpu.vectors import VectorBuilder


def group_columns(tiles: Any) -> int:
    """Columns that share a scale."""
    raise NotImplementedError("compiled code only")


@overload(group_columns)
def _group_columns(tiles: Any) -> Any:
    columns = FORMATS[tiles.instance_class].group_columns

    def constant(tiles: Any) -> int:  # noqa: ARG001  (numba matches the names)
        return columns

    return constant


class _Step:
    """A step of a tile, at one place of a compiled function."""

    def __init__(self, vectors: VectorBuilder, tiles_type: Any, tiles: Any, tile: Any, step: Any) -> None:
        self._vectors = vectors
        self._format = FORMATS[tiles_type.instance_class]
        self._types = tiles_type.types
        self._codes, self._high = (
            vectors.pointer(self._types[plane], vectors.member(tiles, plane), tile, vectors.multiple(step, rows))
            for plane, rows in enumerate((self._format.code_rows, self._format.high_rows))
        )

    def weights(self, lane: int, scales: Any) -> Iterator[Any]:
        """Eight registers, one after the other, of the weights of rows ``lane`` and following."""
        v = self._vectors
        values = self._format.values(
            v,
            lambda row: v.load(self._types[0], self._codes, TILE * row + lane),
            lambda row: v.load(self._types[1], self._high, TILE * row + lane),
        )
        if self._format.group_columns == STEP_COLUMNS:
            return values
        scale = v.load_floats(scales, lane)
        return (v.multiply(value, scale) for value in values)


@intrinsic
def _load_scales(_context: Any, tiles: Any, tile: Any, group: Any, scales: Any) -> Any:
    """``scales [64]`` of the rows of a tile for a group of columns; nothing in a format without."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        tile_format = FORMATS[tiles.instance_class]
        if tile_format.group_columns != STEP_COLUMNS:
            v = VectorBuilder(context, builder)
            stored = v.pointer(tiles.types[2], v.member(arguments[0], 2), arguments[1], arguments[2])
            target = v.pointer(scales, arguments[3])
            for lane in range(0, TILE, v.lanes):
                v.store(tile_format.scale(v, v.load(tiles.types[2], stored, lane)), target, lane)
        return context.get_dummy_value()

    return types.void(tiles, tile, group, scales), generate


@intrinsic
def _decode_step(_context: Any, tiles: Any, tile: Any, step: Any, scales: Any, weights: Any, column: Any) -> Any:
    """``weights [column : column + 8, 64]`` of step ``step`` of a tile."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        v = VectorBuilder(context, builder)
        decoded = _Step(v, tiles, *arguments[:3])
        factors = v.pointer(scales, arguments[3])
        target = v.pointer(weights, arguments[4], arguments[5])
        for lane in range(0, TILE, v.lanes):
            for row, values in enumerate(decoded.weights(lane, factors)):
                v.store(values, target, TILE * row + lane)
        return context.get_dummy_value()

    return types.void(tiles, tile, step, scales, weights, column), generate


def _step_products(rows: int) -> Any:
    """``add(tiles, tile, step, scales, x, row, column, sums)`` for ``rows`` rows from ``row`` on:

    ``sums [rows, 64] += x[rows, column : column + 8] @ weights``, every sum in the order of columns.
    """

    @intrinsic
    def add(
        _context: Any, tiles: Any, tile: Any, step: Any, scales: Any, x: Any, row: Any, column: Any, sums: Any
    ) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            v = VectorBuilder(context, builder)
            decoded = _Step(v, tiles, *arguments[:3])
            factors = v.pointer(scales, arguments[3])
            places = [v.plus(arguments[5], index) for index in range(rows)]
            inputs = [v.pointer(x, arguments[4], place, arguments[6]) for place in places]
            targets = [v.pointer(sums, arguments[7], place) for place in places]
            for lanes in v.register_blocks(TILE):
                totals = [[v.load_floats(target, lane) for lane in lanes] for target in targets]
                columns = zip(*(decoded.weights(lane, factors) for lane in lanes), strict=True)
                for column_index, weights in enumerate(columns):
                    for index, source in enumerate(inputs):
                        value = v.load_scalar(source, column_index)
                        totals[index] = [
                            v.add_product(total, value, weight)
                            for total, weight in zip(totals[index], weights, strict=True)
                        ]
                for target, row_totals in zip(targets, totals, strict=True):
                    for lane, total in zip(lanes, row_totals, strict=True):
                        v.store(total, target, lane)
            return context.get_dummy_value()

        return types.void(tiles, tile, step, scales, x, row, column, sums), generate

    return add


_add_step_products_of_one = _step_products(1)
_add_step_products_of_four = _step_products(ROWS)


@compiled(ORDERED)
def decode(tiles: Any, tile: Any, first: Any, columns: Any, weights: Any) -> None:
    """``weights [columns, 64]`` of a tile from column ``first`` on, where a group begins; whole steps are written."""
    scales = np.empty(TILE, np.float32)
    group_steps = group_columns(tiles) // STEP_COLUMNS
    first_step = first // STEP_COLUMNS
    for step in range((columns + STEP_COLUMNS - 1) // STEP_COLUMNS):
        if step % group_steps == 0:
            _load_scales(tiles, tile, (first_step + step) // group_steps, scales)
        _decode_step(tiles, tile, first_step + step, scales, weights, step * STEP_COLUMNS)


@compiled(ORDERED)
def add_products(tiles: Any, tile: Any, x: Any, first: Any, columns: Any, sums: Any) -> None:
    """``sums [N, 64] += x[:, first : first + columns] @ weights`` of the first ``columns`` columns of a tile.

    ``x`` and ``sums`` are C-contiguous. A row's sums run in the order of columns and are fused alike, alone or among
    others, so that its bits do not depend on them.
    """
    scales = np.empty(TILE, np.float32)
    group_steps = group_columns(tiles) // STEP_COLUMNS
    steps = columns // STEP_COLUMNS
    rest = columns - steps * STEP_COLUMNS
    begin = first + steps * STEP_COLUMNS
    weights = np.empty((STEP_COLUMNS, TILE), np.float32)
    if rest:
        _load_scales(tiles, tile, steps // group_steps, scales)
        _decode_step(tiles, tile, steps, scales, weights, 0 * steps)
    row = 0
    while row < x.shape[0]:
        count = ROWS if row + ROWS <= x.shape[0] else 1
        for step in range(steps):
            if step % group_steps == 0:
                _load_scales(tiles, tile, step // group_steps, scales)
            column = first + step * STEP_COLUMNS
            if count == ROWS:
                _add_step_products_of_four(tiles, tile, step, scales, x, row, column, sums)
            else:
                _add_step_products_of_one(tiles, tile, step, scales, x, row, column, sums)
        if rest and count == ROWS:
            add_products_of_four(x[row : row + ROWS, begin : begin + rest], weights[:rest], sums[row : row + ROWS])
        elif rest:
            add_products_of_one(x[row, begin : begin + rest], weights[:rest], sums[row])
        row += count
