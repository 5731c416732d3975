"""The inner loops of matrix products; the right-hand side may be stored as float32 or as bfloat16 bits.

Every sum runs over k in order and is fused the same way for one row and for four, so a row's result does not depend
on its neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.jit import ORDERED, REORDERED, compiled
from kernels_numba.cpu.storage import load32

ROWS = 4
"""Rows that share one pass over the right-hand side."""


@compiled(ORDERED)
def add_products_of_four(x: Any, w: Any, sums: Any) -> None:
    """``sums [4, C] += x [4, K] @ w [K, C]``, four terms per pass so that the sums stay in registers meanwhile."""
    inner, columns = w.shape
    sums0, sums1, sums2, sums3 = sums[0], sums[1], sums[2], sums[3]
    unrolled = inner // 4 * 4
    for k in range(0, unrolled, 4):
        a0, a1, a2, a3 = x[0, k], x[0, k + 1], x[0, k + 2], x[0, k + 3]
        b0, b1, b2, b3 = x[1, k], x[1, k + 1], x[1, k + 2], x[1, k + 3]
        c0, c1, c2, c3 = x[2, k], x[2, k + 1], x[2, k + 2], x[2, k + 3]
        d0, d1, d2, d3 = x[3, k], x[3, k + 1], x[3, k + 2], x[3, k + 3]
        for c in range(columns):
            w0, w1, w2, w3 = load32(w[k, c]), load32(w[k + 1, c]), load32(w[k + 2, c]), load32(w[k + 3, c])
            sums0[c] = sums0[c] + a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
            sums1[c] = sums1[c] + b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
            sums2[c] = sums2[c] + c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
            sums3[c] = sums3[c] + d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3
    for k in range(unrolled, inner):
        a0, b0, c0, d0 = x[0, k], x[1, k], x[2, k], x[3, k]
        for c in range(columns):
            w0 = load32(w[k, c])
            sums0[c] = sums0[c] + a0 * w0
            sums1[c] = sums1[c] + b0 * w0
            sums2[c] = sums2[c] + c0 * w0
            sums3[c] = sums3[c] + d0 * w0


@compiled(ORDERED)
def add_products_of_one(x: Any, w: Any, sums: Any) -> None:
    """``sums [C] += x [K] @ w [K, C]``."""
    inner, columns = w.shape
    unrolled = inner // 4 * 4
    for k in range(0, unrolled, 4):
        a0, a1, a2, a3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        for c in range(columns):
            w0, w1, w2, w3 = load32(w[k, c]), load32(w[k + 1, c]), load32(w[k + 2, c]), load32(w[k + 3, c])
            sums[c] = sums[c] + a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
    for k in range(unrolled, inner):
        a0 = x[k]
        for c in range(columns):
            sums[c] = sums[c] + a0 * load32(w[k, c])


@compiled(REORDERED)
def dots_of_four(x: Any, y: Any, row: Any, out: Any) -> None:
    """``out[:, row : row + 4] = x [4, D] @ y[row : row + 4].T``: sixteen sums at once, four loads for each four."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    y0, y1, y2, y3 = y[row], y[row + 1], y[row + 2], y[row + 3]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = np.float32(0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = np.float32(0)
    for d in range(x.shape[1]):
        w0, w1, w2, w3 = load32(y0[d]), load32(y1[d]), load32(y2[d]), load32(y3[d])
        s00, s01, s02, s03 = s00 + x0[d] * w0, s01 + x0[d] * w1, s02 + x0[d] * w2, s03 + x0[d] * w3
        s10, s11, s12, s13 = s10 + x1[d] * w0, s11 + x1[d] * w1, s12 + x1[d] * w2, s13 + x1[d] * w3
        s20, s21, s22, s23 = s20 + x2[d] * w0, s21 + x2[d] * w1, s22 + x2[d] * w2, s23 + x2[d] * w3
        s30, s31, s32, s33 = s30 + x3[d] * w0, s31 + x3[d] * w1, s32 + x3[d] * w2, s33 + x3[d] * w3
    out[0, row], out[0, row + 1], out[0, row + 2], out[0, row + 3] = s00, s01, s02, s03
    out[1, row], out[1, row + 1], out[1, row + 2], out[1, row + 3] = s10, s11, s12, s13
    out[2, row], out[2, row + 1], out[2, row + 2], out[2, row + 3] = s20, s21, s22, s23
    out[3, row], out[3, row + 1], out[3, row + 2], out[3, row + 3] = s30, s31, s32, s33
