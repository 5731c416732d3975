"""A page of one kv head as float32 keys and values, for the attention kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.kv_encode import FP8
from kernels_numba.cpu.quantise_rounding import of_float16

HALF = np.float32(0.5)
MAGNITUDE = np.uint32(7)
SIGN = np.uint32(0x80000000)
GROUP = 16


@compiled(ORDERED)
def e2m1_value(word: Any, magnitude: Any, sign: Any) -> Any:
    """Value of the code of a 16-bit element whose magnitude is ``magnitude`` bits up, and its sign ``sign`` below 31.

    Magnitudes 2 to 7 have the bits of a float32 short of the bias of its exponent; 0 and 1 are halves.
    """
    bits = np.uint32(np.uint32(word >> magnitude) & MAGNITUDE)
    normal = np.uint32(np.uint32(bits << np.uint32(22)) + np.uint32(126 << 23)).view(np.float32)
    value = np.float32(np.int32(bits)) * HALF if bits < 2 else normal
    return np.uint32(np.float32(value).view(np.uint32) | (np.uint32(word << sign) & SIGN)).view(np.float32)


@compiled(ORDERED)
def e4m3_value(code: Any) -> Any:
    """Value of an E4M3 code that is not NaN."""
    word = np.uint32(code)
    magnitude = np.uint32(word & np.uint32(127))
    normal = np.uint32(np.uint32(magnitude << np.uint32(20)) + np.uint32(120 << 23)).view(np.float32)
    value = np.float32(np.int32(magnitude)) * np.float32(2.0**-9) if magnitude < 8 else normal
    return np.uint32(np.float32(value).view(np.uint32) | (np.uint32(word << np.uint32(24)) & SIGN)).view(np.float32)


@compiled(ORDERED)
def nvfp4_keys(words: Any, places: Any, members: Any, scale_words: Any, scale_places: Any, e4m3: Any, out: Any) -> None:
    """Keys ``[T, D]`` in the order of ``members.T``: the first codes of all elements, then the second, ...

    An element holds two codes of each of two groups, whose scales are an element of 7-bit words. Of the elements of a
    token that lie side by side 8 share such an element with those that are 8 ``words`` further on.
    """
    count = places.shape[1]
    first, second = np.empty(count, np.float32), np.empty(count, np.float32)
    pair_of = np.empty(count, np.int32)
    for e in range(count):
        pair_of[e] = members[e, 0] // (2 * GROUP)
    low, high = np.empty(scale_places.shape[1], np.float32), np.empty(scale_places.shape[1], np.float32)
    run = 1
    while run < count and places[0, run] == places[0, 0] + run:
        run += 1
    for t in range(out.shape[0]):
        for pair in range(scale_places.shape[1]):
            word = scale_words[scale_places[t, pair]]
            low[pair], high[pair] = e4m3[word & 127], e4m3[(word >> 7) & 127]
        for e in range(count):
            first[e], second[e] = low[pair_of[e]], high[pair_of[e]]
        for begin in range(0, count, run):
            elements = words[places[t, begin] : places[t, begin] + run]
            _codes_of_keys(elements, first[begin : begin + run], second[begin : begin + run], out[t], begin, count)


@compiled(ORDERED)
def _codes_of_keys(elements: Any, first: Any, second: Any, out: Any, begin: Any, count: Any) -> None:
    out0, out1 = out[begin : begin + elements.shape[0]], out[count + begin : count + begin + elements.shape[0]]
    begin += 2 * count
    out2, out3 = out[begin : begin + elements.shape[0]], out[count + begin : count + begin + elements.shape[0]]
    for e in range(elements.shape[0]):
        word = np.uint32(elements[e])
        out0[e] = e2m1_value(word, np.uint32(9), np.uint32(16)) * first[e]
        out1[e] = e2m1_value(word, np.uint32(1), np.uint32(24)) * first[e]
        out2[e] = e2m1_value(word, np.uint32(12), np.uint32(23)) * second[e]
        out3[e] = e2m1_value(word, np.uint32(4), np.uint32(31)) * second[e]


@compiled(ORDERED)
def nvfp4_values(words: Any, places: Any, scale_words: Any, scale_places: Any, e4m3: Any, out: Any) -> None:
    """Values ``[T, D]``; element ``16 slice + i`` of ``places`` holds dimensions ``64 slice + i + {0, 16, 32, 48}``."""
    elements = np.empty(places.shape[1], np.uint32)
    factors = np.empty(2 * scale_places.shape[1], np.float32)
    for t in range(out.shape[0]):
        for e in range(elements.shape[0]):
            elements[e] = words[places[t, e]]
        for pair in range(scale_places.shape[1]):
            word = scale_words[scale_places[t, pair]]
            factors[2 * pair], factors[2 * pair + 1] = e4m3[word & 127], e4m3[(word >> 7) & 127]
        for part in range(elements.shape[0] // GROUP):
            own = elements[GROUP * part : GROUP * (part + 1)]
            f0, f1, f2, f3 = factors[4 * part], factors[4 * part + 1], factors[4 * part + 2], factors[4 * part + 3]
            target = out[t, 4 * GROUP * part : 4 * GROUP * (part + 1)]
            for i in range(GROUP):
                word = own[i]
                target[i] = e2m1_value(word, np.uint32(9), np.uint32(16)) * f0
                target[GROUP + i] = e2m1_value(word, np.uint32(1), np.uint32(24)) * f1
                target[2 * GROUP + i] = e2m1_value(word, np.uint32(12), np.uint32(23)) * f2
                target[3 * GROUP + i] = e2m1_value(word, np.uint32(4), np.uint32(31)) * f3


@compiled(ORDERED)
def scaled_bytes(number: Any, codes: Any, places: Any, scales: Any, scale_places: Any, out: Any) -> None:
    """Vectors ``[T, D]`` of 8-bit codes, each in a place of its own, with float16 scales of equal groups."""
    groups = scale_places.shape[1]
    width = out.shape[1] // groups
    own = np.empty(out.shape[1], np.uint8)
    for t in range(out.shape[0]):
        for d in range(out.shape[1]):
            own[d] = codes[places[t, d]]
        for g in range(groups):
            factor = of_float16(scales[scale_places[t, g]])
            source, target = own[g * width : (g + 1) * width], out[t, g * width : (g + 1) * width]
            if number == FP8:
                for i in range(width):
                    target[i] = e4m3_value(source[i]) * factor
            else:
                for i in range(width):
                    target[i] = np.float32(np.int8(source[i])) * factor
