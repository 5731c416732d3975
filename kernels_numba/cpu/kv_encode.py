"""Keys and values into pages: the rule of ``kernels_numba.kv.encode``, a vector at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import compiled
from kernels_numba.cpu.quantise_rounding import EXACT, bfloat16, e4m3, float16, of_float16

NVFP4, FP8, INT8 = 0, 1, 2
"""Numbers of the formats in compiled code."""
ZERO, ONE = np.float32(0), np.float32(1)
E2M1_LARGEST, E4M3_LARGEST, INT8_LARGEST = np.float32(6), np.float32(448), np.float32(127)
FLOAT16_LARGEST = np.float32(65504)
SHIFTER = np.float32(12582912)
"""1.5 * 2^23: added to a float32 below 2^22, it leaves the nearest integer in the low bits."""


@compiled(EXACT)
def hadamard(x: Any) -> None:
    """Turn ``x [D]`` in place, D a power of two: butterflies of ascending stride, then one multiplication."""
    dim = x.shape[0]
    stride = 1
    while stride < dim:
        for start in range(0, dim, 2 * stride):
            for i in range(start, start + stride):
                first, second = x[i], x[i + stride]
                x[i] = first + second
                x[i + stride] = first - second
        stride *= 2
    factor = np.float32(ONE / np.sqrt(np.float64(dim)))
    for i in range(dim):
        x[i] = x[i] * factor


@compiled(EXACT)
def round_to_bfloat16(x: Any, out: Any) -> None:
    """What of a vector is quantised: rounded to bfloat16, NaN as zero; infinities saturate later."""
    for i in range(x.shape[0]):
        value = x[i]
        rounded = np.uint32(bfloat16(np.float32(value).view(np.uint32)) << np.uint32(16)).view(np.float32)
        out[i] = rounded if value == value else ZERO


@compiled(EXACT)
def quantise(number: Any, x: Any, codes: Any, scales: Any, e4m3_values: Any) -> None:
    """Codes ``[D]`` and scale words ``[n]`` of a vector of bfloat16 numbers, none NaN, by the format ``number``."""
    group = x.shape[0] // scales.shape[0]
    for g in range(scales.shape[0]):
        own = slice(g * group, (g + 1) * group)
        largest = ZERO
        for i in range(g * group, (g + 1) * group):
            largest = max(largest, abs(x[i]))
        if number == NVFP4:
            word = e4m3(min(largest / E2M1_LARGEST, E4M3_LARGEST))
            scales[g] = word
            _e2m1_codes(x[own], e4m3_values[word], codes[own])
        else:
            ceiling = E4M3_LARGEST if number == FP8 else INT8_LARGEST
            half = float16(min(largest / ceiling, FLOAT16_LARGEST))
            scales[g] = half
            inverse = ONE / of_float16(half) if half != 0 else ZERO
            if number == FP8:
                _e4m3_codes(x[own], inverse, codes[own])
            else:
                _int8_codes(x[own], inverse, codes[own])


@compiled(EXACT)
def _e2m1_codes(x: Any, scale: Any, codes: Any) -> None:
    """Codes of magnitudes by the midpoints below them; at a midpoint the even code wins."""
    if scale == 0:
        codes[:] = 0
        return
    for i in range(x.shape[0]):
        y = abs(x[i]) / scale
        code = (
            np.uint8(y > np.float32(0.25))
            + np.uint8(y >= np.float32(0.75))
            + np.uint8(y > np.float32(1.25))
            + np.uint8(y >= np.float32(1.75))
            + np.uint8(y > np.float32(2.5))
            + np.uint8(y >= np.float32(3.5))
            + np.uint8(y > np.float32(5.0))
        )
        sign = np.float32(x[i]).view(np.uint32) >> np.uint32(31)
        codes[i] = np.uint8(code + 8 * sign)


@compiled(EXACT)
def _e4m3_codes(x: Any, inverse: Any, codes: Any) -> None:
    for i in range(x.shape[0]):
        scaled = np.float32(x[i] * inverse)
        sign = scaled.view(np.uint32) >> np.uint32(31)
        codes[i] = np.uint8(e4m3(min(abs(scaled), E4M3_LARGEST)) + 128 * sign)


@compiled(EXACT)
def _int8_codes(x: Any, inverse: Any, codes: Any) -> None:
    for i in range(x.shape[0]):
        scaled = min(max(np.float32(x[i] * inverse), -INT8_LARGEST), INT8_LARGEST)
        codes[i] = np.uint8(np.float32(scaled + SHIFTER).view(np.uint32) & np.uint32(255))


@compiled(EXACT)
def put_codes_of_four(codes: Any, places: Any, members: Any, words: Any) -> None:
    """E2M1 codes of a vector to the 16-bit elements ``places [E]``, as ``kernels_numba.kv.order`` scatters them."""
    for e in range(places.shape[0]):
        c0, c1 = np.int32(codes[members[e, 0]]), np.int32(codes[members[e, 1]])
        c2, c3 = np.int32(codes[members[e, 2]]), np.int32(codes[members[e, 3]])
        magnitudes = (c0 & 7) << 9 | (c1 & 7) << 1 | (c2 & 7) << 12 | (c3 & 7) << 4
        words[places[e]] = magnitudes | (c0 & 8) << 12 | (c1 & 8) << 4 | (c2 & 8) << 5 | c3 >> 3


@compiled(EXACT)
def put_pairs_of_scales(scales: Any, places: Any, words: Any) -> None:
    """E4M3 words of a vector to 16-bit elements, 7 bits each."""
    for e in range(places.shape[0]):
        words[places[e]] = scales[2 * e] | scales[2 * e + 1] << 7


@compiled(EXACT)
def put_singles(numbers: Any, places: Any, elements: Any) -> None:
    """8-bit codes or float16 words of a vector, each to an element of its own."""
    for e in range(places.shape[0]):
        elements[places[e]] = numbers[e]
