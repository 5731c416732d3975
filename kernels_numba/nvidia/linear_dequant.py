"""A stream of quantised weights (``linear_formats``) as bfloat16 ``[rows, columns]``, for products of many rows."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from kernels_numba.nvidia import ptx
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS

THREADS = 256


def make(format_name: str) -> Any:
    """``kernel(weights, row_factors, out, steps, tiles, first_tile, count)``, for ``count`` tiles of a matrix.

    One warp a step; grid: all steps of those tiles in all slices (grid y), eight a block. Exact for formats whose row
    factors are left out (their values have few bits), rounded once or twice for the others.
    """
    weights = FORMATS[format_name]
    lines = [
        f"""
def kernel(weights, row_factors, out, steps, tiles, first_tile, count):
    pdl_launch()
    pdl_wait()
    lane = i32(tid_x() & u32(31))
    at = i32(cta_x() * u32({THREADS // 32}) + (tid_x() >> u32(5)))
    if at < count * steps:
        g = i32(lane >> 2)
        q = i32(lane & 3)
        tile = i32(u_div(at, steps))
        step = i32(at - tile * steps)
        part = i32(cta_y())
        columns = i64(i32(ncta_y()) * steps) * 128
        source = weights + (i64(part * tiles + first_tile + tile) * steps + step) * {weights.step_bytes}
        row = i32(tile * 16 + g)
        place = out + (i64(row) * columns + (part * steps + step) * 128 + q * 4) * 2
        below = columns * 16"""
    ]
    lines += [f"        C{p} = ldg_stream4(source + {512 * p} + lane * 16)" for p in range(weights.pieces)]
    if weights.scale_words:
        load = {4: "ldg_stream4", 2: "ldg_stream2"}[weights.scale_words]
        lines.append(f"        S = {load}(source + {weights.code_bytes} + g * {4 * weights.scale_words})")
    if weights.row_factor_in_values:
        lines.append("        factor0 = ldg_f(row_factors + i64(first_tile * 16 + row) * 4)")
        lines.append("        factor1 = ldg_f(row_factors + i64(first_tile * 16 + row) * 4 + 32)")
    else:
        lines.append(f"        factor0 = f32({weights.lift})\n        factor1 = factor0")
    for group in range(GROUPS):
        lines.append(indent(weights.fragment(group), " " * 8))
        for row, (left, right) in enumerate((("a0", "a2"), ("a1", "a3"))):
            pairs = ", ".join(
                f"bf2_pack(h2_lo_f({a}) * factor{row}, h2_hi_f({a}) * factor{row})" for a in (left, right)
            )
            below = " + below" if row else ""
            lines.append(f"        stg2(place + {32 * group}{below}, {pairs})")
    return ptx.function_of("\n".join(lines), "kernel")


def _rounded(halves: str, row: int) -> str:
    return f"bf2_pack(h2_lo_f({halves}) * factor{row}, h2_hi_f({halves}) * factor{row})"
