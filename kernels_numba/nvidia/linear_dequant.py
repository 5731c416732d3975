"""A stream of quantised weights (``linear_formats``) as bfloat16 ``[rows, columns]``, for products of many rows."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS
from kernels_numba.nvidia.linear_kernels import DEQUANT_STEPS
from kernels_numba.nvidia.text import Source

PARAMETERS = "weights row_factors out steps tiles first_tile count"


def source(format_name: str) -> str:
    """For ``count`` tiles of a matrix: one warp a step, grid ``(steps of a slice / DEQUANT_STEPS, slices)``.

    Exact for formats whose row factors are left out (their values have few bits), rounded to bfloat16 for the others;
    integers times their scales are rounded to halves before.
    """
    weights = FORMATS[format_name]
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        lane = i32(i32(P.tid_x()) & 31)
        at = i32(i32(P.cta_x()) * {DEQUANT_STEPS} + (i32(P.tid_x()) >> 5))
    """)
    with w.block("if at < count * steps:"):
        w(f"""
            g = i32(lane >> 2); q = i32(lane & 3)
            tile = i32(P.u_div(u32(at), u32(steps))); step = i32(at - tile * steps)
            part = i32(P.cta_y()); columns = i64(P.ncta_y()) * steps * 128
            at_step = weights + (i64(part * tiles + first_tile + tile) * steps + step) * {weights.step_bytes}
            row = i32(tile * 16 + g)
            place = out + (i64(row) * columns + (part * steps + step) * 128 + q * 4) * 2; below = columns * 16
        """)
        for piece in range(weights.pieces):
            w(f"C{piece} = P.ldg_stream4(at_step + {512 * piece} + lane * 16)")
        if weights.scale_words:
            at_scales = f"at_step + {weights.scale_offset} + g * {4 * weights.scale_words}"
            w(f"S = P.ldg_stream{weights.scale_words}({at_scales})")
        if weights.high_words:
            at_high = f"at_step + {weights.code_bytes} + lane * {4 * weights.high_words}"
            w(f"H = P.ldg_stream{weights.high_words}({at_high})")
        if weights.row_factor_in_values:
            w("""
                at_factor = row_factors + i64(first_tile * 16 + row) * 4
                factor0 = P.ldg_f(at_factor); factor1 = P.ldg_f(at_factor + 32)
            """)
        else:
            w(f"factor0 = f32({weights.lift}); factor1 = factor0")
        if weights.scales_sums:
            w("factor0 *= P.bits_f(S[0]); factor1 *= P.bits_f(S[1])")
        for group in range(GROUPS):
            w(weights.fragment(group))
            w(f"P.stg2(place + {32 * group}, {_rounded('a0', 0)}, {_rounded('a2', 0)})")
            w(f"P.stg2(place + {32 * group} + below, {_rounded('a1', 1)}, {_rounded('a3', 1)})")
    return str(w)


def _rounded(halves: str, row: int) -> str:
    return f"P.bf2_pack(P.h2_lo_f({halves}) * factor{row}, P.h2_hi_f({halves}) * factor{row})"


def make(format_name: str) -> Any:
    return P.function_of(source(format_name), "kernel", P=P)
