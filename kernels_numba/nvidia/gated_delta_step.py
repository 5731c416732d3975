"""Gated delta rule, one token of any number of sequences: conv, gates, recurrence and gated norm in one launch.

A block owns the state of one value head and holds it in registers: a warp 16 columns, a lane 4 columns of 16 rows. So
sums over rows stay within a warp, and a block meets twice: when query, key and value are there, and to norm its output.
What a block needs of its key head (conv and norm of query and key) it computes itself, though others do the same: that
is cheaper than a launch.

With S' = decay S: yᵀ = kᵀ S, zᵀ = qᵀ S; d = beta (v - decay y); o = decay z + (q·k) d; S = S' + k dᵀ. So all that
is summed over rows is summed together: y, z, q·k and, for the norms of query and key, k·k and q·q.

The conv state of a key head is written by the last of its blocks, which they find by counting: all must have read it
before. The counters end as they began, at 0.

The states are read before the launch waits for its predecessor, which must not be what wrote them.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    BLOCK_WARPS,
    DIM,
    HISTORY,
    STEP_COUNTED,
    STEP_GATES,
    STEP_NORM,
    STEP_QUERY_KEY,
    STEP_SQUARES,
    STEP_VALUE,
    TAPS,
)
from kernels_numba.nvidia.gated_delta_state import load_state, places, products_with_state, store_state
from kernels_numba.nvidia.text import Source, bf16, exp, sigmoid, silu, softplus
from kernels_numba.shapes import L2_EPS

PARAMETERS = """projected conv state slots conv_weight decay_rate dt_bias norm arrivals out
    row_stride conv_stride state_stride key_heads value_heads group eps"""


def source() -> str:
    """Grid (value heads, sequences); 8 warps; strides in bytes.

    ``conv`` (bfloat16) and ``state`` point at the layer in slot 0. ``arrivals``: a counter for every sequence and key
    head.
    """
    w = Source("kernel", PARAMETERS)
    places(w)
    _load(w)
    _conv_and_gates(w)
    _recurrence(w)
    _output(w)
    _state(w)
    return str(w)


def _load(w: Source) -> None:
    """What no launch before this one writes, then the inputs."""
    for c in "kv":
        for tap in range(TAPS):
            w(f"{c}w{tap} = P.ldg_f(conv_weight + (i64(channels) * {tap} + {c}c) * 4)")
    w(f"""
        if tid < {DIM // 4}:
            f = P.ldg_f4(norm + i64(tid) * 16); P.sts_f4(u32(sm + {STEP_NORM} + tid * 16), f[0], f[1], f[2], f[3])
    """)
    for c in "kv":
        w(f"{c}_at = conv + slot * conv_stride + i64({c}c) * {2 * HISTORY}")
        for tap in range(HISTORY):
            w(f"{c}u{tap} = P.ldg_u16({c}_at + {2 * tap})")
    load_state(w)
    w(f"""
        bias = P.ldg_f(dt_bias + i64(h) * 4); rate = P.ldg_f(decay_rate + i64(h) * 4)
        row = projected + i64(sequence) * row_stride
        P.pdl_wait()
        P.pdl_launch()
        ku{HISTORY} = P.ldg_u16(row + kc * 2); vu{HISTORY} = P.ldg_u16(row + vc * 2)
        b_at = row + i64(channels + {DIM} * value_heads + h) * 2
        bu = P.ldg_u16(b_at); au = P.ldg_u16(b_at + value_heads * 2)
        gate = P.ldg2(row + i64(channels + h * {DIM} + own) * 2)
    """)


def _conv_and_gates(w: Source) -> None:
    for c in "kv":
        products = " + ".join(f"{bf16(f'{c}u{tap}', 0)} * {c}w{tap}" for tap in range(TAPS))
        w(f"x = {products}; {c}x = {silu('x')}")
    w(f"""
        P.sts_f(u32(sm + {STEP_QUERY_KEY} + tid * 4), kx)
        if tid < {DIM}:
            P.sts_f(u32(sm + {STEP_VALUE} + tid * 4), vx)
    """)
    with w.block(f"if warp == {BLOCK_WARPS - 1}:"):
        w(f"x = {bf16('au', 0)} + bias")
        softplus(w, "soft", "x")
        w(f"x = {bf16('bu', 0)}; decay = {exp('rate * soft')}; beta = {sigmoid('x')}")
        w(f"if lane == 0:\n    P.sts_f2(u32(sm + {STEP_GATES}), decay, beta)")
    w("""
        P.bar_sync()
        arrived = u32(0)
        if tid == 0:
            arrived = P.atom_inc_relaxed(arrivals + (i64(sequence) * key_heads + hk) * 4, u32(group - 1))
    """)


def _recurrence(w: Source) -> None:
    """``o0`` to ``o3``: the outputs of this lane's columns; the norms of query and key are factors of the sums."""
    products_with_state(w, f"sm + {STEP_QUERY_KEY}", f"sm + {STEP_QUERY_KEY + 4 * DIM}", {"qk": ("q", "k")})
    w.warp_sum("qq", "kk", "qk", *(f"{n}{c}" for n in "yz" for c in range(4)), offsets=(16, 8, 4))
    w(f"""
        v = P.lds_f4(u32(sm + {STEP_VALUE} + own * 4)); gates = P.lds_f2(u32(sm + {STEP_GATES}))
        fq = P.rsqrt(qq + f32({L2_EPS})) * f32({DIM**-0.5}); fk = P.rsqrt(kk + f32({L2_EPS}))
        decay = gates[0]; beta = gates[1]
        decay_k = decay * fk; decay_q = decay * fq; dot = qk * fq
    """)
    for c in range(4):
        w(f"d{c} = beta * (v[{c}] - decay_k * y{c}) * fk; o{c} = decay_q * z{c} + dot * d{c}")


def _output(w: Source) -> None:
    w("square = " + " + ".join(f"o{c} * o{c}" for c in range(4)))
    w.warp_sum("square", offsets=(2, 1))
    w(f"""
        if lane == 0:
            P.sts_f(u32(sm + {STEP_SQUARES} + warp * 4), square)
        if tid == 0:
            P.sts1(u32(sm + {STEP_COUNTED}), arrived)
        P.bar_sync()
        f = P.lds_f4(u32(sm + {STEP_SQUARES})); e = P.lds_f4(u32(sm + {STEP_SQUARES + 16}))
        scale = f[0] + f[1] + f[2] + f[3] + e[0] + e[1] + e[2] + e[3]
        norms = P.lds_f4(u32(sm + {STEP_NORM} + own * 4)); scale = P.rsqrt(scale * f32({1 / DIM}) + eps)
    """)
    with w.block("if rg == 0:"):
        for c in range(4):
            w(f"x = {bf16(f'gate[{c // 2}]', c % 2)}; n{c} = o{c} * scale * norms[{c}] * {silu('x')}")
        w("to = out + ((i64(sequence) * value_heads + h) * 128 + own) * 2")
        w("P.stg2(to, P.bf2_pack(n0, n1), P.bf2_pack(n2, n3))")


def _state(w: Source) -> None:
    for j in range(4):
        w(f"k = P.lds_f4(u32(sm + {STEP_QUERY_KEY + 4 * DIM + 128 * j} + rg * 16))")
        for e in range(4):
            w("; ".join(f"s{j}{e}_{c} = P.fmaf(k[{e}], d{c}, decay * s{j}{e}_{c})" for c in range(4)))
    store_state(w)
    for c, condition in (
        ("v", f"tid < {DIM}"),
        ("k", f"P.lds1(u32(sm + {STEP_COUNTED})) == u32(group - 1)"),
    ):
        with w.block(f"if {condition}:"):
            w("; ".join(f"P.stg_u16({c}_at + {2 * tap}, {c}u{tap + 1})" for tap in range(HISTORY)))


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
