"""After the chunked gated delta rule: the gated norm of every head, and the inputs that the conv will look back at."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import CHUNK, DIM, HISTORY, OUT_TOKENS, ROW_BYTES
from kernels_numba.nvidia.text import Source, bf16, half, silu

PARAMETERS = """heads units projected norm conv slots out
    row_stride conv_stride tokens padded key_heads value_heads eps"""


def source() -> str:
    """Grid (tokens / 8 rounded up, value heads); 8 warps.

    ``heads``: halves [value heads, padded, 128], to be multiplied by ``units`` [value heads, padded / 64, 8].

    At least as many tokens as the conv looks back. ``conv`` points at the layer in slot 0.
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        tid = i32(P.tid_x()); lane = i32(tid & 31); h = i32(P.cta_y())
        t = i32(i32(P.cta_x()) * {OUT_TOKENS} + (tid >> 5)); channels = i32({2 * DIM} * key_heads + {DIM} * value_heads)
    """)
    with w.block("if t < tokens:"):
        w(f"""
            o = P.ldg2(heads + (i64(h) * padded + t) * {ROW_BYTES} + lane * 8)
            z = P.ldg2(projected + i64(t) * row_stride + i64(channels + h * {DIM} + lane * 4) * 2)
            norms = P.ldg_f4(norm + i64(lane) * 16)
            unit = P.ldg_f(units + ((i64(h) * padded + (t & {-CHUNK})) >> 3 << 2) + (lane >> 2) * 4)
        """)
        for c in range(4):
            w(f"o{c} = {half(f'o[{c // 2}]', c % 2)} * unit")
        w("square = " + " + ".join(f"o{c} * o{c}" for c in range(4)))
        w.warp_sum("square")
        w(f"scale = P.rsqrt(square * f32({1 / DIM}) + eps)")
        for c in range(4):
            w(f"x = {bf16(f'z[{c // 2}]', c % 2)}; n{c} = o{c} * scale * norms[{c}] * {silu('x')}")
        w(f"""
            to = out + ((i64(t) * value_heads + h) * {DIM} + lane * 4) * 2
            P.stg2(to, P.bf2_pack(n0, n1), P.bf2_pack(n2, n3))
        """)
    with w.block("if P.cta_x() == 0:"):
        w("past = conv + P.ldg_l(slots) * conv_stride")
        with w.block("for c in range(h * 256 + tid, channels, value_heads * 256):"):
            for tap in range(HISTORY):
                w(f"row = projected + i64(tokens - {HISTORY - tap}) * row_stride")
                w(f"P.stg_u16(past + i64(c) * {2 * HISTORY} + {2 * tap}, P.ldg_u16(row + i64(c) * 2))")
    return str(w)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
