"""Small floating-point formats in numpy: bfloat16, E4M3FN and E2M1, exact in both directions.

E4M3FN and E2M1 are those of the OCP MX specification: E4M3FN has no infinity and ends at 448, E2M1 ends at 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

E4M3_LARGEST = 448.0
E4M3_LARGEST_WORD = 0x7E
E2M1_LARGEST = 6.0


def float32_of_bf16(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Values of bfloat16 words, any shape."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_of_float32(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bfloat16 words of values, ties to even; NaN stays NaN and what exceeds the range becomes infinite."""
    bits = _bits(values)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def e4m3_of_float32(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """E4M3FN words of values, ties to even, saturating at 448; NaN becomes 0x7F, the sign of zero is kept."""
    bits = _bits(values)
    magnitude = np.fmin(np.abs(values), np.float32(E4M3_LARGEST))
    clipped = _bits(magnitude)
    normal = ((clipped + np.uint32(0x7FFFF) + ((clipped >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - 960
    subnormal = np.rint(np.minimum(magnitude, np.float32(1)) * np.float32(512))  # steps of 2^-9, below 2^-6
    word = np.where(magnitude < np.float32(2.0**-6), subnormal.astype(np.uint32), normal)
    sign: NDArray[np.uint32] = (bits >> np.uint32(24)) & np.uint32(0x80)
    return np.where(np.isnan(values), 0x7F, word | sign).astype(np.uint8)


def e2m1_of_float32(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """E2M1 codes (0 to 15) of values, ties to the even code, saturating at 6; the sign of zero is kept."""
    magnitude = np.abs(values)
    code = np.signbit(values).astype(np.uint8) << np.uint8(3)
    for bound in (0.25, 1.25, 2.5, 5.0):  # ties go down, to the even code
        code += magnitude > np.float32(bound)
    for bound in (0.75, 1.75, 3.5):  # ties go up
        code += magnitude >= np.float32(bound)
    return code


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def _e4m3_values() -> NDArray[np.float32]:
    words = np.arange(128)
    exponent, mantissa = words >> 3, (words & 7).astype(np.float64)
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[0x7F] = np.nan
    return _constant(np.concatenate([magnitude, -magnitude]).astype(np.float32))


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


E4M3_VALUES: NDArray[np.float32] = _e4m3_values()
"""Value of each of the 256 words; 0x7F and 0xFF are NaN."""

_E2M1_MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1_VALUES: NDArray[np.float32] = _constant(np.array(_E2M1_MAGNITUDES + [-x for x in _E2M1_MAGNITUDES], np.float32))
"""Value of each of the 16 codes; code 8 is the negative zero."""

E2M1_PAIRS: NDArray[np.float32] = _constant(
    np.stack([E2M1_VALUES[np.arange(256) & 15], E2M1_VALUES[np.arange(256) >> 4]], axis=1)
)
"""The two values of each byte of NVFP4 codes ``[256, 2]``: low nibble first."""
