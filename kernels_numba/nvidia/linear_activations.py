"""Rows of activations as ``linear_gemv`` wants them: halves in fragment order, and the scale of each row."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx
from kernels_numba.nvidia.linear_conversion import CONVERSION

THREADS = 256
_WARPS = THREADS // 32


def make(columns: int) -> Any:
    """``kernel(x, out, scales, rows, width)`` for a product of up to ``columns`` rows of ``width`` bfloat16.

    Grid ``(any, columns)``: every block finds the largest magnitude of its row and converts a part of it. Rows from
    ``rows`` on are copies of the last.
    """
    source = f"""
def kernel(x, out, scales, rows, width):
    pdl_launch()
    pdl_wait()
    shared = smem_base()
    tid = i32(tid_x())
    row = i32(cta_y())
    x_row = x + i64(i_min(row, i32(rows - 1))) * width * 2
    top = u32(0)
    for i in range(tid, width // 8, {THREADS}):
        v = ldg4(x_row + i * 16)
        first = u_max(largest_magnitude(v[0]), largest_magnitude(v[1]))
        top = u_max(top, u_max(first, u_max(largest_magnitude(v[2]), largest_magnitude(v[3]))))
    top = u_max(top, shfl_xor(top, u32(16)))
    top = u_max(top, shfl_xor(top, u32(8)))
    top = u_max(top, shfl_xor(top, u32(4)))
    top = u_max(top, shfl_xor(top, u32(2)))
    top = u_max(top, shfl_xor(top, u32(1)))
    if (tid & 31) == 0:
        sts1(u32(shared + (tid >> 5) * 4), top)
    bar_sync()
    for i in range({_WARPS}):
        top = u_max(top, lds1(u32(shared + i * 4)))
    up = scale_up(top)
    for i in range(i32(cta_x()) * {THREADS} + tid, width // 4, i32(ncta_x()) * {THREADS}):
        pair = ldg2(x_row + i * 8)
        place = out + (((i >> 3) * {columns} + row) * 4 + (i & 3)) * 16 + ((i >> 2) & 1) * 8
        stg2(place, scaled_halves(pair[0], up), scaled_halves(pair[1], up))
    if i32(cta_x()) == 0 and tid == 0:
        stg_f(scales + row * 4, scale_down(top))
"""
    return ptx.function_of(source, "kernel", **CONVERSION)


SHARED_BYTES = 4 * _WARPS
