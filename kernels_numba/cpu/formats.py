"""How the codes of every format become float32 values: LLVM instructions for eight columns of some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels_numba.cpu import tiles
from kernels_numba.cpu.vectors import VectorBuilder

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
UINT4 = tuple(float(code) for code in range(16))
INT4 = tuple(float(code - 16 * (code >= 8)) for code in range(16))
INT2 = (0.0, 1.0, -2.0, -1.0)
HIGH_BIT_OF_INT5 = (0.0, -16.0)
HIGH_BITS_OF_INT6 = (0.0, 16.0, -32.0, -16.0)

Load = Callable[[int], Any]
"""A register of some rows' words in one row of the plane: int32, or float32 if the plane holds that."""
Values = Callable[[VectorBuilder, Load, Load], Iterator[Any]]
"""Yields the eight columns in order, from the loads of codes and of high bits."""


@dataclass(frozen=True)
class TileFormat:
    """Where the codes and the scale of eight columns are, and what they mean."""

    code_rows: int  # rows of the plane of codes that hold eight columns
    values: Values
    high_rows: int = 0
    group_columns: int = tiles.STEP_COLUMNS  # columns that share a scale
    scale: Callable[[VectorBuilder, Any], Any] = lambda _, words: words


def _float32(_v: VectorBuilder, code: Load, _high: Load) -> Iterator[Any]:
    return (code(row) for row in range(8))


def _bfloat16(v: VectorBuilder, code: Load, _high: Load) -> Iterator[Any]:
    return (v.bfloat16(code(row)) for row in range(8))


def _e4m3(v: VectorBuilder, words: Any) -> Any:
    """NaN codes read as 480: packing gives their row a multiplier or scale of NaN instead."""
    return v.minifloat(words, mantissa_bits=3, bias=7, sign_bit=7)


def _float16(v: VectorBuilder, words: Any) -> Any:
    return v.minifloat(words, mantissa_bits=10, bias=15, sign_bit=15)


def _e4m3_codes(v: VectorBuilder, code: Load, _high: Load) -> Iterator[Any]:
    return (_e4m3(v, code(row)) for row in range(8))


def _int8_codes(v: VectorBuilder, code: Load, _high: Load) -> Iterator[Any]:
    return (v.signed_bytes(code(row)) for row in range(8))


def _fields(v: VectorBuilder, load: Load, bits: int, table: tuple[float, ...]) -> Iterator[Any]:
    """Codes of ``bits`` bits, the lowest of a byte first, by their value in ``table``."""
    for row in range(bits):
        words = load(row)
        for shift in range(0, 8, bits):
            yield v.looked_up(table, v.field(words, shift, bits))


def _codes(bits: int, table: tuple[float, ...]) -> Values:
    return lambda v, code, _high: _fields(v, code, bits, table)


def _codes_with_high_bits(bits: int, table: tuple[float, ...]) -> Values:
    """Four low bits as an unsigned number, and ``bits`` high ones by what they add."""
    return lambda v, code, high: (
        v.add(low, added) for low, added in zip(_fields(v, code, 4, UINT4), _fields(v, high, bits, table), strict=True)
    )


FORMATS: dict[type[tiles.Tiles], TileFormat] = {
    tiles.Float32Tiles: TileFormat(8, _float32),
    tiles.Bfloat16Tiles: TileFormat(8, _bfloat16),
    tiles.Nvfp4Tiles: TileFormat(4, _codes(4, E2M1), group_columns=16, scale=_e4m3),
    tiles.Fp8RowTiles: TileFormat(8, _e4m3_codes),
    tiles.Fp8BlockTiles: TileFormat(8, _e4m3_codes, group_columns=128),
    tiles.Int2Tiles: TileFormat(2, _codes(2, INT2), group_columns=128, scale=_float16),
    tiles.Int4Tiles: TileFormat(4, _codes(4, INT4), group_columns=64, scale=_float16),
    tiles.Int5Tiles: TileFormat(
        4, _codes_with_high_bits(1, HIGH_BIT_OF_INT5), high_rows=1, group_columns=64, scale=_float16
    ),
    tiles.Int6Tiles: TileFormat(
        4, _codes_with_high_bits(2, HIGH_BITS_OF_INT6), high_rows=2, group_columns=64, scale=_float16
    ),
    tiles.Int8Tiles: TileFormat(8, _int8_codes, group_columns=32, scale=_float16),
}
