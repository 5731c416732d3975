"""Words of small floating-point formats from float32 and back, ties to even, for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import compiled

EXACT: frozenset[str] = frozenset()
"""No fused or reordered arithmetic: every operation rounds as written."""

SHIFTER = np.float32(12582912)
"""1.5 * 2^23: added to a float32 below 2^22, it leaves the nearest integer in the low bits."""


@compiled(EXACT)
def e4m3(value: Any) -> Any:
    """E4M3FN word of a value from 0 to 448, ties to even."""
    bits = np.float32(value).view(np.uint32)
    normal = ((bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - np.uint32(960)
    subnormal = np.float32(value * np.float32(512) + SHIFTER).view(np.uint32)
    return np.uint8(normal if value >= np.float32(0.015625) else subnormal)


@compiled(EXACT)
def bfloat16(bits: Any) -> Any:
    """bfloat16 word of the bits of a finite float32, ties to even."""
    return np.uint32((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@compiled(EXACT)
def float16(value: Any) -> Any:
    """fp16 word of a value from 0 to 65504, ties to even."""
    bits = np.float32(value).view(np.uint32)
    if value < np.float32(2.0**-14):
        return np.uint16(np.float32(value * np.float32(2.0**24) + SHIFTER).view(np.uint32) & np.uint32(0xFFFF))
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
    return np.uint16(rounded - np.uint32(112 << 10))


@compiled(EXACT)
def of_float16(word: Any) -> Any:
    """Value of an fp16 word that is not negative and finite."""
    if word < 1024:
        return np.float32(word) * np.float32(2.0**-24)
    return np.uint32((np.uint32(word) + np.uint32(112 << 10)) << np.uint32(13)).view(np.float32)
