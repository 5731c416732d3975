"""Before the chunked gated delta rule: conv, SiLU, the norms of query and key, and the gates, of all tokens at once.

A block takes one head of query, key or value in 64 tokens: a warp 16 tokens, a lane 4 channels. Tokens up to the next
whole chunk are zeros, with beta 0 and no decay: they leave the state as it is.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import CHUNK, DIM, HISTORY, ROW_BYTES, TAPS
from kernels_numba.nvidia.text import Source, bf16, sigmoid, silu, softplus
from kernels_numba.shapes import L2_EPS

PARAMETERS = """projected conv slots conv_weight decay_rate dt_bias heads log_decay beta
    row_stride conv_stride tokens padded key_heads value_heads"""
WARP_TOKENS = CHUNK // 4
AT_ONCE = 4
"""Tokens whose rows are fetched together."""


def source() -> str:
    """Grid (chunks, heads of query, key and value); 4 warps; strides in bytes.

    Writes ``heads``, halves [query heads | key heads | value heads, padded, 128] with queries scaled by 128**-0.5, and
    ``log_decay`` and ``beta``, float32 [value heads, padded]. ``conv`` points at the layer in slot 0.
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        tid = i32(P.tid_x()); lane = i32(tid & 31); chunk = i32(P.cta_x()); head = i32(P.cta_y())
        channels = i32({2 * DIM} * key_heads + {DIM} * value_heads); c = i32(head * {DIM} + lane * 4)
        first = i32(chunk * {CHUNK} + (tid >> 5) * {WARP_TOKENS})
        at = projected + i64(c) * 2; to = heads + (i64(head) * padded + first) * {ROW_BYTES} + lane * 8
        normed = head < 2 * key_heads; scale = f32(1)
        if head < key_heads:
            scale = f32({DIM**-0.5})
    """)
    for tap in range(TAPS):
        w(f"w{tap} = P.ldg_f4(conv_weight + (i64(channels) * {tap} + c) * 4)")
    _history(w)
    with w.block(f"for i in range(0, {WARP_TOKENS}, {AT_ONCE}):"):
        for j in range(AT_ONCE):
            w(f"u{j} = P.ldg2(at + i64(P.i_min(u32(first + i + {j}), u32(tokens - 1))) * row_stride)")
        for j in range(AT_ONCE):
            _token(w, j)
    _gates(w)
    return str(w)


def _history(w: Source) -> None:
    """``x0_c`` to ``x2_c``: the inputs of channel c before ``first``, the state [channels, 3] at the very beginning."""
    with w.block("if first == 0:"):
        w(f"past = conv + P.ldg_l(slots) * conv_stride + i64(c) * {2 * HISTORY}")
        for i in range(3):
            w(f"p{i} = P.ldg2(past + {8 * i})")
        for i in range(4 * HISTORY):
            w(f"x{i % HISTORY}_{i // HISTORY} = {bf16(f'p{i // 4}[{i // 2 % 2}]', i % 2)}")
    with w.block("else:"):
        for tap in range(HISTORY):
            w(f"p = P.ldg2(at + i64(P.i_min(u32(first - {HISTORY - tap}), u32(tokens - 1))) * row_stride)")
            for c in range(4):
                w(f"x{tap}_{c} = {bf16(f'p[{c // 2}]', c % 2)}")


def _token(w: Source, j: int) -> None:
    for c in range(4):
        w(f"x{HISTORY}_{c} = {bf16(f'u{j}[{c // 2}]', c % 2)}")
        w(f"y = {' + '.join(f'x{tap}_{c} * w{tap}[{c}]' for tap in range(TAPS))}; y{c} = {silu('y')}")
        for tap in range(HISTORY):
            w(f"x{tap}_{c} = x{tap + 1}_{c}")
    w("factor = f32(1)")
    with w.block("if normed:"):
        w("square = " + " + ".join(f"y{c} * y{c}" for c in range(4)))
        w.warp_sum("square")
        w(f"factor = P.rsqrt(square + f32({L2_EPS})) * scale")
    w(f"""
        if first + i + {j} >= tokens:
            factor = f32(0)
        P.stg2(to + (i + {j}) * {ROW_BYTES}, P.h2_pack(y0 * factor, y1 * factor), P.h2_pack(y2 * factor, y3 * factor))
    """)


def _gates(w: Source) -> None:
    with w.block(f"if head >= 2 * key_heads and tid < {CHUNK}:"):
        w(f"""
            h = i32(head - 2 * key_heads); t = i32(chunk * {CHUNK} + tid)
            row = projected + i64(P.i_min(u32(t), u32(tokens - 1))) * row_stride
            b_at = i64(channels + {DIM} * value_heads + h) * 2
            x = {bf16("P.ldg_u16(row + b_at + value_heads * 2)", 0)} + P.ldg_f(dt_bias + i64(h) * 4)
        """)
        softplus(w, "soft", "x")
        w(f"""
            decay = P.ldg_f(decay_rate + i64(h) * 4) * soft
            x = {bf16("P.ldg_u16(row + b_at)", 0)}; gate = {sigmoid("x")}
            if t >= tokens:
                decay = f32(0); gate = f32(0)
            P.stg_f(log_decay + (i64(h) * padded + t) * 4, decay); P.stg_f(beta + (i64(h) * padded + t) * 4, gate)
        """)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
