"""The experts of each token and their weights, and its activations as the products want them: a block per token."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_conversion import add_magnitudes, scaled_halves, set_scales
from kernels_numba.nvidia.moe_kernels import ROUTE_THREADS
from kernels_numba.nvidia.text import WARP_OFFSETS, Source, exp

PARAMETERS = (
    "x routing halves scales chosen weights maxima items tokens slots x_stride routing_stride width experts top_k alone"
)
"""``x``, ``routing``: bfloat16 with their strides in values; ``alone``: every pair of token and expert is an item."""


def source() -> str:
    """Of equal logits those of the first experts are chosen: a key holds the logit's order above the expert's.

    Weights are softmax probabilities over those chosen, as those over all experts are once they are renormalised.
    Activations become halves in fragment order (``moe_products``), times a power of two per row.
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        shared = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        token = i64(P.cta_x()); keys = i32(shared + {ROUTE_THREADS // 8})
    """)
    with w.block("if warp == 0:"):
        _choose(w)
    _convert(w)
    return str(w)


def _choose(w: Source) -> None:
    with w.block("for i in range(lane, experts, 32):"):
        w("""
            bits = i32(P.ldg_u16(routing + (token * routing_stride + i) * 2))
            flip = i32(0x8000)
            if bits >= 0x8000:
                flip = i32(0xFFFF)
            P.sts1(u32(keys + i * 4), P.u_or(P.u_shl(u32(bits ^ flip), u32(16)), u32(0xFFFF - i)))
        """)
    w("last = u32(0xFFFFFFFF); mine = u32(0)")
    with w.block("for rank in range(top_k):"):
        w("best = u32(0)")
        with w.block("for i in range(lane, experts, 32):"):
            w("key = P.lds1(u32(keys + i * 4))")
            with w.block("if key < last:"):
                w("best = P.u_max(best, key)")
        for offset in WARP_OFFSETS:
            w(f"best = P.u_max(best, P.shfl_xor(best, u32({offset})))")
        w("""
            last = best
            if lane == rank:
                mine = best
        """)
    w(f"""
        ordered = i32(P.u_shr(mine, u32(16))); back = i32(0xFFFF)
        if ordered >= 0x8000:
            back = i32(0x8000)
        logit = P.bits_f(P.u_shl(u32(ordered ^ back), u32(16)))
        highest = P.shfl_idx_f(logit, u32(0))
        share = {exp("logit - highest")}
        if lane >= top_k:
            share = f32(0)
        total = share
    """)
    w.warp_sum("total")
    with w.block("if lane < top_k:"):
        w("""
            pair = i32(token * top_k + lane); expert = i32(0xFFFF - i32(P.u_and(mine, u32(0xFFFF))))
            P.stg_f(weights + i64(pair) * 4, share * P.rcp(total))
            P.stg1(maxima + i64(pair) * 4, u32(0))
            P.stg1(chosen + i64(pair) * 4, u32(expert))
        """)
        with w.block("if alone != 0:"):
            w("""
                P.stg4(items + i64(pair) * 16, u32(expert), u32(pair), u32(1), u32(0))
                P.stg1(tokens + i64(pair) * 4, u32(i32(token)))
                P.stg1(slots + i64(pair) * 4, u32(pair))
            """)


def _convert(w: Source) -> None:
    """By the largest magnitude that all threads find."""
    w("top = u32(0); from_row = x + token * x_stride * 2")
    with w.block(f"for i in range(tid, width // 8, {ROUTE_THREADS}):"):
        w("v = P.ldg4(from_row + i * 16)")
        add_magnitudes(w, [f"v[{j}]" for j in range(4)])
    for offset in WARP_OFFSETS:
        w(f"top = P.u_max(top, P.shfl_xor(top, u32({offset})))")
    w(f"""
        if lane == 0:
            P.sts1(u32(shared + warp * 4), top)
        P.bar_sync()
        for i in range({ROUTE_THREADS // 32}):
            top = P.u_max(top, P.lds1(u32(shared + i * 4)))
    """)
    set_scales(w)
    with w.block(f"for i in range(tid, width // 4, {ROUTE_THREADS}):"):
        w(f"""
            four = P.ldg2(from_row + i * 8)
            place = halves + token * width * 2 + (i >> 3) * 64 + (i & 3) * 16 + ((i >> 2) & 1) * 8
            P.stg2(place, {scaled_halves("four[0]")}, {scaled_halves("four[1]")})
        """)
    w("""
        if tid == 0:
            P.stg_f(scales + token * 4, down)
    """)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
