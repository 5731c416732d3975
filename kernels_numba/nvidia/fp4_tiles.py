"""Block-scaled FP4 tensor cores of sm_120a, and what brings stored NVFP4 keys and queries into their registers.

Never run on such a device: none was at hand. Layouts are those of the PTX ISA (matrix fragments of ``mma.m16n8k64``
with ``.e2m1``, block scaling of ``mma.sync``), which the emulated instruction of the tests is written from.

A product takes 64 of k in 4 blocks of 16. Registers of lane 4g + q, eight codes each with the first in the low bits:

* A: rows g and g + 8 of k = 8q .., then rows g and g + 8 of k = 32 + 8q ..; B: column g of the same k, two registers.
* Scales of A: 4 bytes, of the 4 blocks, in the lanes of one half of each four: its first lane has row g, its second
  row g + 8. Scales of B: in one lane of each four, column g. Which half, which lane is part of the instruction.

The blocks of step j (of 4 of a head) are the groups 2j, 8 + 2j, 2j + 1, 8 + 2j + 1 of 16 dimensions: a stored word has
four codes of a group 2i and four of 2i + 1 that take turns by half bytes, so two words of a token make a register of
each by shifts and masks alone, 11 operations for 16 codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels_numba.nvidia.ptx import constant, f32, inline, ir32, types, u32
from kernels_numba.nvidia.tiles import Items, _Emitter, _intrinsic, _third, _tuple_of

KEY_PLACES = (2, 0, 3, 1)
"""Which of four dimensions the two codes of each byte have after ``nvfp4_codes``."""
_DIVISION = "div.rn.f32 $0,$1,$2;", "f", "ff"
_LARGEST = "{.reg .f32 t; abs.f32 t,$2; max.f32 $0,$1,t;}", "f", "ff"
_BF16_PARTS = ("shl.b32 $0,$1,16;", "f", "r"), ("and.b32 $0,$1,0xffff0000;", "f", "r")
_FINITE = (
    "{.reg .pred p; .reg .f32 t; max.f32 t,$1,0fFF7F0000; min.f32 t,t,0f7F7F0000; setp.num.f32 p,$1,$1;"
    "selp.f32 $0,t,0f00000000,p;}",
    "f",
    "f",
)
"""NaN as zero, infinity as the largest bfloat16."""
_MMA = (
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
    "{{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}},$14,{{0,{half}}},$15,{{0,{lane}}};"
)


def _mma(half: int) -> Callable[..., list[Items]]:
    """Two steps of k, 2 half and 2 half + 1; their scales come from that half and from the lanes of their numbers."""

    def build(e: _Emitter, a: Any, b: Any, c: Any, a_scales: Any, b_scales: Any) -> list[Items]:
        rows, row_scales, column_scales = e.items(a), e.items(a_scales), e.items(b_scales)
        sums = [e.items(tile) for tile in e.items(c)]
        for step in range(2):
            text = _MMA.format(half=half, lane=2 * half + step)
            for tile, words in enumerate(e.items(b)):
                own = e.items(words)[2 * step : 2 * step + 2]
                values = [*rows[4 * step : 4 * step + 4], *own, *sums[tile], row_scales[step], column_scales[tile]]
                sums[tile] = inline(e.b, text, "ffff", "rrrrrrffffrr", values)
        return sums

    return build


# C += A B of two steps: A 8 words, B 4 words a tile, scales of A a word for each step, scales of B a word for each tile
mma_nvfp4_first = _intrinsic(5, _third, _mma(0))
mma_nvfp4_second = _intrinsic(5, _third, _mma(1))


def _chosen(b: Any, x: Any, y: Any, mask: int) -> Any:
    """Bits of ``x`` where the mask has ones, of ``y`` elsewhere: one operation."""
    return b.or_(b.and_(x, constant(mask)), b.and_(y, constant(~mask)))


def gathered_codes(b: Any, x: Any, y: Any) -> list[Any]:
    """The even group's codes of the words ``x`` and ``y``, then the odd one's: of x in the low half of each byte.

    Every stored byte has an even group's code (sign 7, magnitude 3..1) and an odd one's (sign 0, magnitude 6..4).
    """
    x_down, y_up = b.lshr(x, constant(4)), b.shl(y, constant(3))
    even = _chosen(b, b.lshr(x, constant(1)), x_down, 0x07070707), _chosen(b, y_up, y, 0x70707070)
    odd = _chosen(b, x_down, b.shl(x, constant(3)), 0x07070707), _chosen(b, y, b.shl(y, constant(7)), 0x70707070)
    return [_chosen(b, *words, 0x0F0F0F0F) for words in (even, odd)]


def _nvfp4_codes(e: _Emitter, *words: Any) -> Items:
    found: Items = []
    for step in range(2):
        upper, lower = (gathered_codes(e.b, *words[4 * step + 2 * row :][:2]) for row in range(2))
        found += [upper[0], lower[0], upper[1], lower[1]]
    return found


# A of two steps, of two words of row g and two of row g + 8 for each
nvfp4_codes = _intrinsic(8, lambda *_: _tuple_of(u32, 8), _nvfp4_codes)


def _spread(b: Any, word: Any) -> Any:
    """Four scales of 7 bits, two to a half, as bytes."""
    return b.and_(_chosen(b, word, b.shl(word, constant(1)), 0x00FF00FF), constant(0x7F7F7F7F))


# bytes of the scales of two stored words; ``prmt`` then takes those of a step
spread_scales = ir32(_spread, 1)


def _query_values(e: _Emitter, words: Any, swapped: Any) -> Items:
    first = e.items(words)
    is_swapped = e.b.icmp_signed("!=", swapped, constant(0))
    values: Items = []
    for index in range(4):
        word = e.b.select(is_swapped, first[(index + 2) % 4], first[index])
        values += [e(_FINITE, e(part, word)) for part in _BF16_PARTS]
    largest = e.float(0)
    for value in values:
        largest = e(_LARGEST, largest, value)
    return [*values, largest]


# 8 bfloat16 numbers as finite float32, where ``swapped`` the last four first; then the largest magnitude
query_values = _intrinsic(2, lambda *_: _tuple_of(f32, 9), _query_values, (None, types.int32))
_CONVERSIONS = "".join(f"cvt.rn.satfinite.e2m1x2.f32 c{i},${2 * i + 2},${2 * i + 1};" for i in range(4))
_E2M1 = "{.reg .b8 c0,c1,c2,c3; " + _CONVERSIONS + "mov.b32 $0,{c0,c1,c2,c3};}", "r", "f" * 8
"""8 codes, the first in the low bits: to nearest, ties to even, at most 6."""


def _query_codes(e: _Emitter, values: Any, step: Any) -> Any:
    x = [e(_DIVISION, value, step) for value in e.items(values)[:8]]
    return e(_E2M1, *(x[4 * high + place] for place in KEY_PLACES for high in range(2)))


# E2M1 of the quotients of 8 values by ``step``, in the order that ``nvfp4_codes`` leaves keys in
query_codes = _intrinsic(2, lambda *_: u32, _query_codes, (None, f32))
