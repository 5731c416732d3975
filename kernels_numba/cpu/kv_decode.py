"""A page of one kv head as float32 keys and values, for the attention kernels.

Reads 16-bit elements, or 32-bit words of two of them, by tables of places; only ``kernels_numba.kv.order`` knows why
they are where they are. All tables are unsigned, so that no index is checked for being negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from kernels_numba.cpu.formats import E2M1
from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.kv_encode import FP8
from kernels_numba.cpu.quantise_rounding import of_float16
from kernels_numba.cpu.vectors import VectorBuilder

BLOCK = 16
"""Elements that are decoded together."""


def _e2m1(v: VectorBuilder, words: Any, begin: int) -> Iterator[Any]:
    """Values of the four codes of the 16-bit elements that begin ``begin`` bits up."""
    for sign, magnitude in ((15, 9), (7, 1), (8, 12), (0, 4)):
        yield v.looked_up(E2M1, v.field_and_bit(words, begin + magnitude, 3, begin + sign))


@intrinsic
def _decode_key_codes(
    _context: Any, elements: Any, place: Any, factors: Any, row: Any, out: Any, token: Any, column: Any, stride: Any
) -> Any:
    """The four codes of BLOCK elements from ``place`` on, to columns ``column + {0, 1, 2, 3} * stride`` of a token.

    ``factors [row, 2, 4]``: of the first two codes of neighbouring pairs of elements, and of the other two.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        v = VectorBuilder(context, builder)
        source = v.pointer(elements, arguments[0], arguments[1])
        scales = v.pointer(factors, arguments[2], arguments[3])
        columns = [arguments[6]]
        for _ in range(3):
            columns.append(builder.add(columns[-1], arguments[7]))
        targets = [v.pointer(out, arguments[4], arguments[5], place) for place in columns]
        for lane in range(0, BLOCK, v.lanes):
            words = v.load(elements, source, lane)
            for index, values in enumerate(_e2m1(v, words, 0)):
                scale = v.load_four_pairs(scales, 4 * (index // 2))
                v.store(v.multiply(values, scale), targets[index], lane)
        return context.get_dummy_value()

    return types.void(elements, place, factors, row, out, token, column, stride), generate


@intrinsic
def _decode_value_codes(
    _context: Any, words: Any, begin: Any, factors: Any, group: Any, out: Any, token: Any, column: Any
) -> Any:
    """The codes of BLOCK words from ``begin`` on: the low elements are of ``token``, the high ones of the next.

    Each holds one code for each of four groups of BLOCK columns from ``column`` on; ``factors [2, groups]``.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        v = VectorBuilder(context, builder)
        source = v.pointer(words, arguments[0], arguments[1])
        for half in range(2):
            scales = v.pointer(factors, arguments[2], v.index(half), arguments[3])
            target = v.pointer(out, arguments[4], v.plus(arguments[5], half), arguments[6])
            for lane in range(0, BLOCK, v.lanes):
                for index, values in enumerate(_e2m1(v, v.load(words, source, lane), 16 * half)):
                    v.store(v.multiply(values, v.load_scalar(scales, index)), target, BLOCK * index + lane)
        return context.get_dummy_value()

    return types.void(words, begin, factors, group, out, token, column), generate


def _byte_decoder(of_fp8: bool, shift: int) -> Any:
    """``decode(words, begin, factors, group, out, token, column)``:

    BLOCK 8-bit codes, ``shift`` bits up in the words from ``begin`` on, times ``factors [group]``.
    """

    @intrinsic
    def decode(
        _context: Any, words: Any, begin: Any, factors: Any, group: Any, out: Any, token: Any, column: Any
    ) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            v = VectorBuilder(context, builder)
            source, target = v.pointer(words, *arguments[:2]), v.pointer(out, *arguments[4:])
            scale = v.load_scalar(v.pointer(factors, *arguments[2:4]), 0)
            for lane in range(0, BLOCK, v.lanes):
                codes = v.field(v.load(words, source, lane), shift, 8)
                values = v.minifloat(codes, 3, 7, 7) if of_fp8 else v.signed_bytes(codes)
                v.store(v.multiply(values, scale), target, lane)
            return context.get_dummy_value()

        return types.void(words, begin, factors, group, out, token, column), generate

    return decode


_decode_fp8, _decode_fp8_high = _byte_decoder(True, 0), _byte_decoder(True, 8)
_decode_int8, _decode_int8_high = _byte_decoder(False, 0), _byte_decoder(False, 8)


@compiled(ORDERED)
def nvfp4_keys(halves: Any, places: Any, scale_places: Any, e4m3: Any, out: Any) -> None:
    """Keys ``[T, D]`` in the order ``[member 4][element]``, from 16-bit elements ``places [T, D / 4]``.

    Elements of a part lie side by side. The scales of two groups are an element of ``scale_places [T, D / 32]``: four
    of them, or two, are those of neighbouring pairs of elements of a part, over and over.
    """
    tokens, count = places.shape
    parts = max(1, count // 32)
    run, scales = count // parts, scale_places.shape[1] // parts
    factors = np.empty((tokens * parts, 2, 4), np.float32)
    for t in range(tokens):
        for part in range(parts):
            for pair in range(4):
                word = halves[scale_places[t, part * scales + pair % scales]]
                factors[t * parts + part, 0, pair] = e4m3[word & 127]
                factors[t * parts + part, 1, pair] = e4m3[word >> 7]
    for t in range(tokens):
        for part in range(parts):
            for e in range(part * run, (part + 1) * run, BLOCK):
                _decode_key_codes(halves, np.int64(places[t, e]), factors, t * parts + part, out, t, e, count)


@compiled(ORDERED)
def nvfp4_values(halves: Any, words: Any, pairs: Any, scale_places: Any, e4m3: Any, out: Any) -> None:
    """Values ``[T, D]``, two tokens at a time: word ``16 slice + i`` of ``pairs [T / 2, D / 4]`` holds, of both,
    dimensions ``64 slice + i + {0, 16, 32, 48}``.
    """
    count = pairs.shape[1]
    own, factors = np.empty(count, np.uint32), np.empty((2, 2 * scale_places.shape[1]), np.float32)
    for pair in range(pairs.shape[0]):
        for e in range(count):
            own[e] = words[pairs[pair, e]]
        for half in range(2):
            for group in range(scale_places.shape[1]):
                word = halves[scale_places[2 * pair + half, group]]
                factors[half, 2 * group], factors[half, 2 * group + 1] = e4m3[word & 127], e4m3[word >> 7]
        for begin in range(0, count, BLOCK):
            _decode_value_codes(own, begin, factors, begin // 4, out, 2 * pair, 4 * begin)


@compiled(ORDERED)
def byte_keys(number: Any, codes: Any, halves: Any, places: Any, scale_places: Any, out: Any) -> None:
    """Keys ``[T, D]`` from rows of 8-bit codes that begin at ``places [T, 0]``."""
    factors = np.empty(scale_places.shape[1], np.float32)
    width = out.shape[1] // scale_places.shape[1]
    for t in range(out.shape[0]):
        for group in range(factors.shape[0]):
            factors[group] = of_float16(halves[scale_places[t, group]])
        first = np.int64(places[t, 0])
        for d in range(0, out.shape[1], BLOCK):
            if number == FP8:
                _decode_fp8(codes, first + d, factors, d // width, out, t, d)
            else:
                _decode_int8(codes, first + d, factors, d // width, out, t, d)


@compiled(ORDERED)
def byte_values(number: Any, halves: Any, pairs: Any, scale_places: Any, out: Any) -> None:
    """Values ``[T, D]``, two tokens at a time: a 16-bit element of ``pairs [T / 2, D]`` holds a dimension of both."""
    own = np.empty(out.shape[1], np.uint32)
    low, high = np.empty(scale_places.shape[1], np.float32), np.empty(scale_places.shape[1], np.float32)
    width = out.shape[1] // scale_places.shape[1]
    for pair in range(pairs.shape[0]):
        t = 2 * pair
        for d in range(own.shape[0]):
            own[d] = halves[pairs[pair, d]]
        for group in range(low.shape[0]):
            low[group] = of_float16(halves[scale_places[t, group]])
            high[group] = of_float16(halves[scale_places[t + 1, group]])
        for d in range(0, out.shape[1], BLOCK):
            if number == FP8:
                _decode_fp8(own, d, low, d // width, out, t, d)
                _decode_fp8_high(own, d, high, d // width, out, t + 1, d)
            else:
                _decode_int8(own, d, low, d // width, out, t, d)
                _decode_int8_high(own, d, high, d // width, out, t + 1, d)
