"""Scalar functions that vectorise."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import ORDERED, compiled

LOG2_E = np.float32(1.44269504088896)
# ln 2 in two parts, the first exact in few bits, so that n * LN2_HIGH is exact (Cody and Waite).
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
MAX_EXPONENT = np.float32(88.0)
MIN_EXPONENT = np.float32(-87.0)
ONE = np.float32(1)
HALF = np.float32(0.5)


@compiled(ORDERED)
def exp32(x: Any) -> Any:
    """e^x in float32 with a relative error below 2e-7; saturates outside [-87, 88]; exactly 1 at 0.

    Reduction to |r| <= ln 2 / 2 and the polynomial of Cephes' expf.
    """
    x = min(max(x, MIN_EXPONENT), MAX_EXPONENT)
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + ONE
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled(ORDERED)
def silu(x: Any) -> Any:
    """x * sigmoid(x) in float32."""
    return x / (ONE + exp32(-x))


@compiled(ORDERED)
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) in float32."""
    return ONE / (ONE + exp32(-x))
