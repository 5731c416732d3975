"""Kernels that quantise rows of weights ``[R, K]``.

Values come as words: float32 bits with ``shift`` 0, bfloat16 with ``shift`` 16. A kernel returns the first row that
holds a magnitude above ``limit`` (NaN and infinity are), or -1. All arithmetic is float32, in the order written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import compiled
from kernels_numba.cpu.quantise_rounding import EXACT, SHIFTER, bfloat16, e4m3, float16, of_float16

ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)
FLOAT32_LARGEST = np.float32(3.4028234663852886e38)
MAGNITUDE = np.uint32(0x7FFFFFFF)
NVFP4_BLOCK = 16


@compiled(EXACT)
def largest_magnitude(words: Any, shift: Any) -> Any:
    """Bits of the largest magnitude of ``words [R, K]``."""
    found = np.uint32(0)
    for row in range(words.shape[0]):
        for k in range(words.shape[1]):
            found = max(found, np.uint32((np.uint32(words[row, k]) << shift) & MAGNITUDE))
    return found


@compiled(EXACT)
def quantise_grouped(
    words: Any,
    shift: Any,
    bits: Any,
    group: Any,
    smallest: Any,
    largest: Any,
    limit: Any,
    codes: Any,
    high: Any,
    scales: Any,
) -> Any:
    """``codes u1 [R, groups * 32]``, ``high u1 [R, groups * 8 (bits - 4)]`` or unused, fp16 ``scales [R, groups]``.

    Codes reach from ``smallest`` to ``largest`` (float32); columns beyond K count as 0.
    """
    groups = scales.shape[1]
    loaded = np.zeros(groups * group, np.uint32)
    x = loaded.view(np.float32)
    lanes = np.empty(groups * group, np.uint8)
    for row in range(words.shape[0]):
        _load(words[row], shift, loaded)
        for g in range(groups):
            begin, end = g * group, (g + 1) * group
            found = _largest(loaded[begin:end])
            if not found <= limit:
                return row
            scale = float16(found / largest)
            if scale == 0 and found > ZERO:
                scale = np.uint16(1)
            scales[row, g] = scale
            inverse = ONE / of_float16(scale) if scale != 0 else ZERO
            _round(x[begin:end], inverse, smallest, largest, lanes[begin:end])
        _pack(lanes, bits, codes[row], high[row])
    return -1


@compiled(EXACT)
def quantise_nvfp4(
    words: Any, shift: Any, divisor: Any, lifts: Any, steps: Any, e4m3_values: Any, codes: Any, scales: Any
) -> Any:
    """``codes u1 [R, K/2]``, ``scales u1 [R, K/16]`` in natural order; ``e4m3_values`` are the values of the 256 words.

    ``lifts``: a block with a value other than 0 has at least the scale word 1. ``steps``: scale words to try, relative
    to the usual one; the first with the least squared error is kept, the usual one being the first.
    """
    columns = words.shape[1]
    loaded = np.empty(columns, np.uint32)
    y = loaded.view(np.float32)
    lanes = np.empty(columns, np.uint8)
    magnitudes = np.empty(NVFP4_BLOCK, np.float32)
    squares = np.empty(NVFP4_BLOCK, np.float32)
    for row in range(words.shape[0]):
        _load(words[row], shift, loaded)
        if not _largest(loaded) <= FLOAT32_LARGEST:
            return row
        for k in range(columns):
            y[k] = y[k] * divisor
        for block in range(columns // NVFP4_BLOCK):
            begin = block * NVFP4_BLOCK
            found = _largest(loaded[begin : begin + NVFP4_BLOCK])
            word = e4m3(min(found / np.float32(6), np.float32(448)))
            if lifts and word == 0 and found > ZERO:
                word = np.uint8(1)
            if steps.shape[0] > 0:
                for i in range(NVFP4_BLOCK):
                    magnitudes[i] = abs(y[begin + i])
                word = _least_error(magnitudes, word, steps, e4m3_values, squares)
            scales[row, block] = word
            _e2m1(
                loaded[begin : begin + NVFP4_BLOCK],
                y[begin : begin + NVFP4_BLOCK],
                e4m3_values[word],
                lanes[begin : begin + NVFP4_BLOCK],
            )
        for byte in range(columns // 2):
            codes[row, byte] = lanes[2 * byte] | (lanes[2 * byte + 1] << np.uint8(4))
    return -1


@compiled(EXACT)
def quantise_fp8_rows(words: Any, shift: Any, codes: Any, scales: Any) -> Any:
    """``codes u1 [R, K]``, ``scales u2 [R]`` (bfloat16); float32 values are rounded to bfloat16 first."""
    loaded = np.empty(words.shape[1], np.uint32)
    x = loaded.view(np.float32)
    for row in range(words.shape[0]):
        _load(words[row], shift, loaded)
        if not _largest(loaded) <= FLOAT32_LARGEST:
            return row
        if shift == 0:
            for k in range(loaded.shape[0]):
                loaded[k] = bfloat16(loaded[k]) << np.uint32(16)
        found = _largest(loaded)
        if not found <= FLOAT32_LARGEST:
            return row
        scale = np.uint16(bfloat16(np.float32(found / np.float32(448)).view(np.uint32)))
        if scale == 0 and found > ZERO:
            scale = np.uint16(1)
        scales[row] = scale
        inverse = ZERO
        if scale != 0:
            inverse = min(ONE / np.uint32(np.uint32(scale) << np.uint32(16)).view(np.float32), FLOAT32_LARGEST)
        for k in range(loaded.shape[0]):
            sign = np.uint8((loaded[k] >> np.uint32(24)) & np.uint32(0x80))
            codes[row, k] = e4m3(min(abs(x[k] * inverse), np.float32(448))) | sign
    return -1


@compiled(EXACT)
def _load(words: Any, shift: Any, loaded: Any) -> None:
    for k in range(words.shape[0]):
        loaded[k] = np.uint32(words[k]) << shift


@compiled(EXACT)
def _largest(loaded: Any) -> Any:
    """Largest magnitude of float32 bits; NaN if there is one."""
    found = np.uint32(0)
    for k in range(loaded.shape[0]):
        found = max(found, np.uint32(loaded[k] & MAGNITUDE))
    return np.uint32(found).view(np.float32)


@compiled(EXACT)
def _round(x: Any, inverse: Any, smallest: Any, largest: Any, lanes: Any) -> None:
    """Two's complement bytes of ``x * inverse``, ties to even."""
    for i in range(x.shape[0]):
        shifted = min(max(x[i] * inverse, smallest), largest) + SHIFTER
        lanes[i] = np.uint8(np.float32(shifted).view(np.uint32) & np.uint32(0xFF))


@compiled(EXACT)
def _pack(lanes: Any, bits: Any, codes: Any, high: Any) -> None:
    """Planes of a row from the low ``bits`` bits of its lanes."""
    if bits == 8:
        codes[:] = lanes
    elif bits == 2:
        for i in range(codes.shape[0]):
            low = (lanes[4 * i] & np.uint8(3)) | ((lanes[4 * i + 1] & np.uint8(3)) << np.uint8(2))
            top = (lanes[4 * i + 2] & np.uint8(3)) | ((lanes[4 * i + 3] & np.uint8(3)) << np.uint8(2))
            codes[i] = low | (top << np.uint8(4))
    else:
        for i in range(codes.shape[0]):
            codes[i] = (lanes[2 * i] & np.uint8(15)) | (lanes[2 * i + 1] << np.uint8(4))
        if bits == 5:
            for i in range(high.shape[0]):
                byte = np.uint8(0)
                for j in range(8):
                    byte |= ((lanes[8 * i + j] >> np.uint8(4)) & np.uint8(1)) << np.uint8(j)
                high[i] = byte
        if bits == 6:
            for i in range(high.shape[0]):
                byte = np.uint8(0)
                for j in range(4):
                    byte |= ((lanes[4 * i + j] >> np.uint8(4)) & np.uint8(3)) << np.uint8(2 * j)
                high[i] = byte


@compiled(EXACT)
def _least_error(magnitudes: Any, word: Any, steps: Any, e4m3_values: Any, squares: Any) -> Any:
    """The scale word among ``word`` and those ``steps`` away with the least squared error; the first of equals."""
    best = word
    least = _squared_error(magnitudes, e4m3_values[word], squares)
    for step in steps:
        tried = min(max(np.int64(word) + step, np.int64(0)), np.int64(0x7E))
        error = _squared_error(magnitudes, e4m3_values[tried], squares)
        if error < least:
            best, least = np.uint8(tried), error
    return best


@compiled(EXACT)
def _squared_error(magnitudes: Any, scale: Any, squares: Any) -> Any:
    half, double = HALF * scale, np.float32(2) * scale
    for i in range(NVFP4_BLOCK):
        v = magnitudes[i]
        q = half if v > np.float32(0.25) * scale else ZERO
        q += half if v >= np.float32(0.75) * scale else ZERO
        q += half if v > np.float32(1.25) * scale else ZERO
        q += half if v >= np.float32(1.75) * scale else ZERO
        q += scale if v > np.float32(2.5) * scale else ZERO
        q += scale if v >= np.float32(3.5) * scale else ZERO
        q += double if v > np.float32(5) * scale else ZERO
        squares[i] = (v - q) * (v - q)
    width = NVFP4_BLOCK
    while width > 1:
        width //= 2
        for i in range(width):
            squares[i] = squares[i] + squares[i + width]
    return squares[0]


@compiled(EXACT)
def _e2m1(loaded: Any, y: Any, scale: Any, lanes: Any) -> None:
    """Codes of ``y / scale``, ties to the even code; all 0 if the scale is.

    Bounds times scale are exact, and no quotient of float32 rounds onto or across a bound, so that comparing the
    products is comparing the quotient.
    """
    if scale == ZERO:
        lanes[:] = 0
        return
    for i in range(NVFP4_BLOCK):
        v = abs(y[i])
        code = np.uint8(v > np.float32(0.25) * scale)
        code += np.uint8(v >= np.float32(0.75) * scale)
        code += np.uint8(v > np.float32(1.25) * scale)
        code += np.uint8(v >= np.float32(1.75) * scale)
        code += np.uint8(v > np.float32(2.5) * scale)
        code += np.uint8(v >= np.float32(3.5) * scale)
        code += np.uint8(v > np.float32(5) * scale)
        lanes[i] = code | np.uint8((loaded[i] >> np.uint32(28)) & np.uint32(8))
