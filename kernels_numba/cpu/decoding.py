"""Decoding eight columns of a tile at a time, into memory or straight into sums, for every quantised format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.products import add_products_of_one
from kernels_numba.cpu.tiles import (
    STEP_COLUMNS,
    TILE,
    Fp8BlockTiles,
    Fp8RowTiles,
    Int2Tiles,
    Int4Tiles,
    Int5Tiles,
    Int6Tiles,
    Int8Tiles,
    Nvfp4Tiles,
)
from kernels_numba.cpu.vectors import VectorBuilder

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
UINT4 = tuple(float(code) for code in range(16))
INT4 = tuple(float(code - 16 * (code >= 8)) for code in range(16))
INT2 = (0.0, 1.0, -2.0, -1.0)

Load = Callable[[int], Any]
"""A register of bytes, as int32, of one row of bytes of the step."""


@dataclass(frozen=True)
class TileFormat:
    """How eight columns of 64 rows become values, and which scale they have."""

    code_rows: int  # rows of 64 bytes that hold a step
    high_rows: int
    group_columns: int  # columns that share a scale
    scale: Callable[[VectorBuilder, Any, int], Any] | None
    values: Callable[[VectorBuilder, Load, Load], list[Any]]


def _float32_scale(v: VectorBuilder, pointer: Any, offset: int) -> Any:
    return v.load_floats(pointer, offset)


def _e4m3_scale(v: VectorBuilder, pointer: Any, offset: int) -> Any:
    return _e4m3(v, v.load_words(pointer, offset))


def _float16_scale(v: VectorBuilder, pointer: Any, offset: int) -> Any:
    """Infinities count as NaN."""
    return v.minifloat(v.load_words(pointer, offset, bits=16), mantissa_bits=10, bias=15, sign_bit=15, first_nan=0x7C00)


def _e4m3(v: VectorBuilder, words: Any) -> Any:
    return v.minifloat(words, mantissa_bits=3, bias=7, sign_bit=7, first_nan=0x7F)


def _from_table(table: tuple[float, ...], bits: int) -> Callable[[VectorBuilder, Load, Load], list[Any]]:
    """Codes of ``bits`` bits, the lowest first, by their value."""

    def values(v: VectorBuilder, code: Load, _high: Load) -> list[Any]:
        words = [code(row) for row in range(bits)]
        return [v.looked_up(table, v.field(word, shift, bits)) for word in words for shift in range(0, 8, bits)]

    return values


def _with_high_bits(bits: int, table: tuple[float, ...]) -> Callable[[VectorBuilder, Load, Load], list[Any]]:
    """Four low bits, and ``bits`` high ones by the value that they add."""

    def values(v: VectorBuilder, code: Load, high: Load) -> list[Any]:
        words = [high(row) for row in range(bits)]
        added = [v.looked_up(table, v.field(word, shift, bits)) for word in words for shift in range(0, 8, bits)]
        return [v.add(x, y) for x, y in zip(_from_table(UINT4, 4)(v, code, high), added, strict=True)]

    return values


def _e4m3_values(v: VectorBuilder, code: Load, _high: Load) -> list[Any]:
    return [_e4m3(v, code(row)) for row in range(STEP_COLUMNS)]


def _int8_values(v: VectorBuilder, code: Load, _high: Load) -> list[Any]:
    return [v.signed_bytes(code(row)) for row in range(STEP_COLUMNS)]


FORMATS = {
    Nvfp4Tiles: TileFormat(4, 0, 16, _e4m3_scale, _from_table(E2M1, 4)),
    Fp8RowTiles: TileFormat(8, 0, 128, None, _e4m3_values),
    Fp8BlockTiles: TileFormat(8, 0, 128, _float32_scale, _e4m3_values),
    Int2Tiles: TileFormat(2, 0, 128, _float16_scale, _from_table(INT2, 2)),
    Int4Tiles: TileFormat(4, 0, 64, _float16_scale, _from_table(INT4, 4)),
    Int5Tiles: TileFormat(4, 1, 64, _float16_scale, _with_high_bits(1, (0.0, -16.0))),
    Int6Tiles: TileFormat(4, 2, 64, _float16_scale, _with_high_bits(2, (0.0, 16.0, -32.0, -16.0))),
    Int8Tiles: TileFormat(8, 0, 32, _float16_scale, _int8_values),
}


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
    """Eight columns of a tile, at one place of a compiled function."""

    def __init__(self, vectors: VectorBuilder, tiles_type: Any, tiles: Any, tile: Any, step: Any) -> None:
        self._vectors = vectors
        self._format = FORMATS[tiles_type.instance_class]
        self._codes, self._high = (
            vectors.pointer(plane, vectors.member(tiles, index), tile, vectors.multiple(step, rows))
            for index, (plane, rows) in enumerate(
                zip(tiles_type.types, (self._format.code_rows, self._format.high_rows), strict=False)
            )
        )

    def weights(self, scales: Any, lane: int) -> list[Any]:
        """Eight registers of weights in rows ``lane`` and following."""
        v = self._vectors
        values = self._format.values(
            v,
            lambda row: v.load_words(self._codes, TILE * row + lane),
            lambda row: v.load_words(self._high, TILE * row + lane),
        )
        if self._format.scale is None:
            return values
        scale = v.load_floats(scales, lane)
        return [v.multiply(value, scale) for value in values]


@intrinsic
def _load_scales(_context: Any, tiles: Any, tile: Any, group: Any, scales: Any) -> Any:
    """``scales [64]`` of the rows of a tile, for a group of columns; nothing where a format has none."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        load_scale = FORMATS[tiles.instance_class].scale
        if load_scale is not None:
            v = VectorBuilder(context, builder)
            stored = v.pointer(tiles.types[2], v.member(arguments[0], 2), arguments[1], arguments[2])
            target = v.pointer(scales, arguments[3])
            for lane in range(0, TILE, v.lanes):
                v.store(load_scale(v, stored, lane), target, lane)
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
            for row, values in enumerate(decoded.weights(factors, lane)):
                v.store(values, target, TILE * row + lane)
        return context.get_dummy_value()

    return types.void(tiles, tile, step, scales, weights, column), generate


@intrinsic
def _add_step_products(
    _context: Any, tiles: Any, tile: Any, step: Any, scales: Any, x: Any, column: Any, sums: Any
) -> Any:
    """``sums [64] += x[column : column + 8] @ weights`` of step ``step`` of a tile."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        v = VectorBuilder(context, builder)
        decoded = _Step(v, tiles, *arguments[:3])
        factors = v.pointer(scales, arguments[3])
        row = v.pointer(x, arguments[4], arguments[5])
        totals = v.pointer(sums, arguments[6])
        inputs = [v.load_scalar(row, column) for column in range(STEP_COLUMNS)]
        for lane in range(0, TILE, v.lanes):
            total = v.load_floats(totals, lane)
            for value, weights in zip(inputs, decoded.weights(factors, lane), strict=True):
                total = v.add_product(total, value, weights)
            v.store(total, totals, lane)
        return context.get_dummy_value()

    return types.void(tiles, tile, step, scales, x, column, sums), generate


@compiled(ORDERED)
def decode(tiles: Any, tile: Any, first: Any, columns: Any, weights: Any) -> None:
    """``weights [columns, 64]`` of a tile from column ``first`` on, where a group begins."""
    scales = np.empty(TILE, np.float32)
    group_steps = group_columns(tiles) // STEP_COLUMNS
    for step in range((columns + STEP_COLUMNS - 1) // STEP_COLUMNS):
        absolute = first // STEP_COLUMNS + step
        if step % group_steps == 0:
            _load_scales(tiles, tile, absolute // group_steps, scales)
        _decode_step(tiles, tile, absolute, scales, weights, step * STEP_COLUMNS)


@compiled(ORDERED)
def add_products_of_row(tiles: Any, tile: Any, x: Any, sums: Any) -> None:
    """``sums [64] += x [K] @ weights`` of a whole tile, which are never written to memory.

    The results are the bits of ``decode`` and ``add_products_of_one``.
    """
    columns = x.shape[0]
    scales = np.empty(TILE, np.float32)
    group_steps = group_columns(tiles) // STEP_COLUMNS
    steps = columns // STEP_COLUMNS
    for step in range(steps):
        if step % group_steps == 0:
            _load_scales(tiles, tile, step // group_steps, scales)
        _add_step_products(tiles, tile, step, scales, x, step * STEP_COLUMNS, sums)
    rest = columns - steps * STEP_COLUMNS
    if rest:
        if steps % group_steps == 0:
            _load_scales(tiles, tile, steps // group_steps, scales)
        weights = np.empty((STEP_COLUMNS, TILE), np.float32)
        _decode_step(tiles, tile, steps, scales, weights, 0 * steps)
        add_products_of_one(x[steps * STEP_COLUMNS :], weights[:rest], sums)
