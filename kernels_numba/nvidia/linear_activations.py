"""Rows of activations as ``linear_gemv`` wants them: halves in fragment order, and the scale of each row."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_conversion import add_magnitudes, scaled_halves, set_scales
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS
from kernels_numba.nvidia.text import WARP_OFFSETS, Source

PARAMETERS = "x out scales rows width"


def source(columns: int) -> str:
    """For a product of up to ``columns`` rows of ``width`` values; grid ``(any, columns)``.

    Every block finds the largest magnitude of its row and converts a part of it. Rows from ``rows`` on are copies of
    the last.
    """
    w = Source("kernel", PARAMETERS)
    w("""
        P.pdl_launch(); P.pdl_wait()
        shared = P.smem_base(); tid = i32(P.tid_x()); row = i32(P.cta_y())
        from_row = x + i64(P.i_min(u32(row), u32(rows - 1))) * width * 2
        top = u32(0)
    """)
    with w.block(f"for i in range(tid, width // 8, {CONVERTING_THREADS}):"):
        w("v = P.ldg4(from_row + i * 16)")
        add_magnitudes(w, [f"v[{j}]" for j in range(4)])
    for offset in WARP_OFFSETS:
        w(f"top = P.u_max(top, P.shfl_xor(top, u32({offset})))")
    w(f"""
        if (tid & 31) == 0:
            P.sts1(u32(shared + (tid >> 5) * 4), top)
        P.bar_sync()
        for i in range({CONVERTING_THREADS // 32}):
            top = P.u_max(top, P.lds1(u32(shared + i * 4)))
    """)
    set_scales(w)
    w(f"first = i32(P.cta_x()) * {CONVERTING_THREADS} + tid; threads = i32(P.ncta_x()) * {CONVERTING_THREADS}")
    with w.block("for i in range(first, width // 4, threads):"):
        w(f"""
            pair = P.ldg2(from_row + i * 8)
            place = out + (((i >> 3) * {columns} + row) * 4 + (i & 3)) * 16 + ((i >> 2) & 1) * 8
            P.stg2(place, {scaled_halves("pair[0]")}, {scaled_halves("pair[1]")})
        """)
    w("""
        if i32(P.cta_x()) == 0 and tid == 0:
            P.stg_f(scales + row * 4, down)
    """)
    return str(w)


def make(columns: int) -> Any:
    return P.function_of(source(columns), "kernel", P=P)
