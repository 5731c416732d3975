"""Gated delta rule token by token: conv, gates, recurrence and gated norm of any number of sequences in one launch.

A block owns ``128 / splits`` columns of the state of one value head and holds them in registers over its tokens: every
lane 4 columns of ``rows`` neighbouring rows. What it needs beside (conv and norm of its head's query and key) it
computes itself, though others do the same: that is cheaper than a launch.

With S' = decay S: yᵀ = kᵀ S, zᵀ = qᵀ S; d = beta (v - decay y); o = decay z + (q·k) d; S = S' + k dᵀ. So y, z and q·k
are reduced over the rows together, and a token costs three barriers.

Two things blocks leave to the last of them, which they find by counting: to write the conv state of a key head, which
all its readers must have read before; and the norm over a value head that they share. The counters end as they began,
at 0.

The states are read before the launch waits for its predecessor, which must not be what wrote them.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    DIM,
    HISTORY,
    STEP_COUNTED,
    STEP_DOTS,
    STEP_GATES,
    STEP_NORM,
    STEP_OUTPUT_GATE,
    STEP_QUERY_KEY,
    STEP_SQUARES,
    STEP_SUMS,
    STEP_TOTALS,
    STEP_VALUE,
    STEP_WARPS,
    TAPS,
)
from kernels_numba.nvidia.text import Source, bf16, exp, sigmoid, silu, softplus
from kernels_numba.shapes import L2_EPS

PARAMETERS = """projected conv state slots conv_weight decay_rate dt_bias norm partial key_arrivals value_arrivals out
    row_stride conv_stride state_stride tokens key_heads value_heads group eps"""


def source(splits: int) -> str:
    """Grid (value heads * splits, sequences); strides in bytes; row s * tokens + t is token t of sequence s.

    ``conv`` (bfloat16) and ``state`` point at the layer in slot 0. ``partial``: the output before the norm, float32.
    """
    warps, columns, lanes = STEP_WARPS[splits], DIM // splits, 32 // splits  # of a block; a row's
    rows = DIM // warps // splits  # of a lane
    w = Source("kernel", PARAMETERS)
    _load(w, splits, columns, lanes, rows)
    with w.block("for t in range(tokens):"):
        # twice, as a warp writes those of the next token when others still read these
        w(f"gates_at = i32(sm + {STEP_GATES} + (t & 1) * 8)")
        w(f"gate_at = i32(sm + {STEP_OUTPUT_GATE} + (t & 1) * {2 * DIM} + lane * 8)")
        if splits == 1:
            with w.block(f"if warp == {STEP_WARPS[splits] - 2}:"):
                w("gate = P.ldg2(row + z_at); P.sts2(u32(gate_at), gate[0], gate[1])")
        _conv_and_gates(w, splits)
        _recurrence(w, warps, columns, lanes, rows)
        w("place = (i64(sequence) * tokens + t) * value_heads + h")
        with w.block(f"if warp == (t & {warps - 1})" + (f" and lane < {lanes}:" if splits > 1 else ":")):
            if splits == 1:
                w("gate = P.lds2(u32(gate_at))")
                _gated_norm(w)
            else:
                w(f"P.stg_f4(partial + (place * {DIM} + column) * 4, o0, o1, o2, o3)")
    _store(w, splits, columns, rows)
    return str(w)


def _load(w: Source, splits: int, columns: int, lanes: int, rows: int) -> None:
    """What no launch before this one writes, then the inputs."""
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        split = i32(P.cta_x()) & {splits - 1}; h = i32(P.cta_x()) >> {splits.bit_length() - 1}
        sequence = i32(P.cta_y()); slot = P.ldg_l(slots + i64(sequence) * 8)
        hk = i32(P.u_div(u32(h), u32(group)))
        channels = i32({2 * DIM} * key_heads + {DIM} * value_heads)
        kc = i32(((tid >> 7) & 1) * key_heads * {DIM} + hk * {DIM} + (tid & {DIM - 1}))
        vc = i32({2 * DIM} * key_heads + h * {DIM} + split * {columns} + (tid & {columns - 1}))
    """)
    if splits == 1:
        w(f"if tid >= {2 * DIM}:\n    kc = vc")
    for c in _channels(splits):
        for tap in range(TAPS):
            w(f"{c}w{tap} = P.ldg_f(conv_weight + (i64(channels) * {tap} + {c}c) * 4)")
    w(f"""
        if tid < {DIM // 4}:
            norms = P.ldg_f4(norm + i64(tid) * 16)
            P.sts_f4(u32(sm + {STEP_NORM} + tid * 16), norms[0], norms[1], norms[2], norms[3])
        row = projected + i64(sequence) * tokens * row_stride
        z_at = i64(channels + h * {DIM} + lane * 4) * 2; b_at = i64(channels + {DIM} * value_heads + h) * 2
        a_at = b_at + value_heads * 2
    """)
    for c in _channels(splits):
        w(f"{c}_at = conv + slot * conv_stride + i64({c}c) * {2 * HISTORY}")
        for tap in range(HISTORY):
            w(f"{c}u{tap} = P.ldg_u16({c}_at + {2 * tap})")
    w(f"""
        column = i32(split * {columns} + (lane & {lanes - 1}) * 4)
        r0 = i32(warp * {rows * splits} + (lane >> {lanes.bit_length() - 1}) * {rows})
        at = state + slot * state_stride + (i64(h) * {DIM * DIM} + r0 * {DIM} + column) * 4
    """)
    for r in range(rows):
        w(f"s{r}_0, s{r}_1, s{r}_2, s{r}_3 = P.ldg_f4(at + {r * DIM * 4})")
    w(f"""
        P.pdl_wait()
        {"; ".join(f"{c}u{HISTORY} = P.ldg_u16(row + {c}c * 2)" for c in _channels(splits))}
        bu = P.ldg_u16(row + b_at); au = P.ldg_u16(row + a_at)
        P.bar_sync()
        arrived = u32(0)
        if tid == 0:
            arrived = P.atom_inc(key_arrivals + (i64(sequence) * key_heads + hk) * 4, u32(group * {splits} - 1))
    """)


def _channels(splits: int) -> str:
    """Of the conv in a thread: a larger block has threads for those of the value alone, a smaller one has not."""
    return "k" if splits == 1 else "kv"


def _conv_and_gates(w: Source, splits: int) -> None:
    """Query, key and value into shared memory; the gates of this token, and the inputs of the next."""
    with w.block("if t + 1 < tokens:"):
        w("row += i64(row_stride)")
    for c in _channels(splits):
        w(f"x = {bf16(f'{c}u{HISTORY}', 0)} * {c}w{HISTORY}")
        for tap in range(HISTORY):
            w(f"x += {bf16(f'{c}u{tap}', 0)} * {c}w{tap}")
            w(f"{c}u{tap} = {c}u{tap + 1}")
        w(f"{c}x = {silu('x')}; {c}u{HISTORY} = P.ldg_u16(row + {c}c * 2)")
    w("square = kx * kx")
    w.warp_sum("square")
    w(f"""
        if tid < {3 * DIM}:
            P.sts_f(u32(sm + {STEP_QUERY_KEY} + tid * 4), kx)
        if lane == 0 and warp < 8:
            P.sts_f(u32(sm + {STEP_SQUARES} + warp * 4), square)
    """)
    if splits > 1:
        w(f"if tid < {DIM // splits}:\n    P.sts_f(u32(sm + {STEP_VALUE} + tid * 4), vx)")
    with w.block(f"if warp == {STEP_WARPS[splits] - 1}:"):
        w(f"x = {bf16('au', 0)} + P.ldg_f(dt_bias + i64(h) * 4)")
        softplus(w, "soft", "x")
        w(f"x = {bf16('bu', 0)}; decay = {exp('P.ldg_f(decay_rate + i64(h) * 4) * soft')}; beta = {sigmoid('x')}")
        w("if lane == 0:\n    P.sts_f2(u32(gates_at), decay, beta)")
    w("bu = P.ldg_u16(row + b_at); au = P.ldg_u16(row + a_at); P.bar_sync()")


def _recurrence(w: Source, warps: int, columns: int, lanes: int, rows: int) -> None:
    """The norms of query and key are factors of the sums; ``o0`` to ``o3`` are the outputs of this lane's columns."""
    for name, start, scale in (("q", STEP_SQUARES, f" * f32({DIM**-0.5})"), ("k", STEP_SQUARES + 16, "")):
        w(f"f = P.lds_f4(u32(sm + {start})); f{name} = P.rsqrt(f[0] + f[1] + f[2] + f[3] + f32({L2_EPS})){scale}")
    w(f"v = P.lds_f4(u32(sm + {STEP_VALUE} + (column - split * {columns}) * 4))")
    for r in range(0, rows, 4):
        for name, start in (("q", STEP_QUERY_KEY), ("k", STEP_QUERY_KEY + DIM * 4)):
            w(f"{name}{r} = P.lds_f4(u32(sm + {start} + (r0 + {r}) * 4))")
    q, k = ([f"{c}{r // 4 * 4}[{r % 4}]" for r in range(rows)] for c in "qk")
    w("qk = " + " + ".join(f"{q[r]} * {k[r]}" for r in range(rows)))
    for c in range(4):
        w(f"y{c} = " + " + ".join(f"{k[r]} * s{r}_{c}" for r in range(rows)))
        w(f"z{c} = " + " + ".join(f"{q[r]} * s{r}_{c}" for r in range(rows)))
    sums = [f"{n}{c}" for n in "yz" for c in range(4)]
    w.warp_sum("qk", *sums, offsets=[offset for offset in (16, 8) if offset >= lanes])
    place = f"sm + {STEP_SUMS} + (lane & {lanes - 1}) * 16 + {columns * 8} *"
    w(f"""
        if lane < {lanes}:
            P.sts_f4(u32({place} warp), y0, y1, y2, y3); P.sts_f4(u32({place} warp + {columns * 4}), z0, z1, z2, z3)
        if lane == 0:
            P.sts_f(u32(sm + {STEP_DOTS} + warp * 4), qk)
        P.bar_sync()
    """)
    with w.block(f"if tid < {2 * columns}:"):
        w("sum = f32(0)")
        for j in range(warps):
            w(f"sum += P.lds_f(u32(sm + {STEP_SUMS + j * columns * 8} + tid * 4))")
        w(f"P.sts_f(u32(sm + {STEP_TOTALS} + tid * 4), sum)")
    w(f"""
        P.bar_sync()
        qk = f32(0)
        y = P.lds_f4(u32(sm + {STEP_TOTALS} + (lane & {lanes - 1}) * 16))
        z = P.lds_f4(u32(sm + {STEP_TOTALS + columns * 4} + (lane & {lanes - 1}) * 16))
    """)
    for j in range(0, warps, 4):
        w(f"f = P.lds_f4(u32(sm + {STEP_DOTS + 4 * j})); qk += f[0] + f[1] + f[2] + f[3]")
    w("f = P.lds_f2(u32(gates_at)); decay = f[0]; beta = f[1]")
    w("decay_k = decay * fk; decay_q = decay * fq; qk *= fq")
    for c in range(4):
        w(f"d = beta * (v[{c}] - decay_k * y[{c}]) * fk; o{c} = decay_q * z[{c}] + qk * d")
        for r in range(rows):
            w(f"s{r}_{c} = P.fmaf({k[r]}, d, decay * s{r}_{c})")


def _gated_norm(w: Source) -> None:
    """Of ``o0`` to ``o3`` in the lanes of a warp, gated by ``gate``, to row and head ``place`` of the output."""
    w("square = " + " + ".join(f"o{c} * o{c}" for c in range(4)))
    w.warp_sum("square")
    w(f"scale = P.rsqrt(square * f32({1 / DIM}) + eps); norms = P.lds_f4(u32(sm + {STEP_NORM} + lane * 16))")
    for c in range(4):
        w(f"x = {bf16(f'gate[{c // 2}]', c % 2)}; n{c} = o{c} * scale * norms[{c}] * {silu('x')}")
    w(f"P.stg2(out + (place * {DIM} + lane * 4) * 2, P.bf2_pack(n0, n1), P.bf2_pack(n2, n3))")


def _store(w: Source, splits: int, columns: int, rows: int) -> None:
    w("P.pdl_launch()")  # late: blocks of the next launch would take the place of this one's
    for r in range(rows):
        w(f"P.stg_f4(at + {r * DIM * 4}, s{r}_0, s{r}_1, s{r}_2, s{r}_3)")
    own = "v" if splits > 1 else "k"
    with w.block(f"if tid < {columns}:" if splits > 1 else f"if tid >= {2 * DIM} and tid < {3 * DIM}:"):
        w("; ".join(f"P.stg_u16({own}_at + {2 * tap}, {own}u{tap})" for tap in range(HISTORY)))
    with w.block("if tid == 0:"):
        w(f"P.sts1(u32(sm + {STEP_COUNTED}), arrived)")
    w("P.bar_sync()")
    with w.block(f"if tid < {2 * DIM} and P.lds1(u32(sm + {STEP_COUNTED})) == u32(group * {splits} - 1):"):
        w("; ".join(f"P.stg_u16(k_at + {2 * tap}, ku{tap})" for tap in range(HISTORY)))
    if splits > 1:
        _join(w, splits)


def _join(w: Source, splits: int) -> None:
    """The last block of a head finds all partial outputs of it."""
    w(f"""
        if tid == 0:
            P.fence_gpu()
            counter = value_arrivals + (i64(sequence) * value_heads + h) * 4
            P.sts1(u32(sm + {STEP_COUNTED + 4}), P.atom_inc(counter, u32({splits - 1})))
        P.bar_sync()
    """)
    with w.block(f"if P.lds1(u32(sm + {STEP_COUNTED + 4})) == u32({splits - 1}):"):
        w("P.fence_gpu()")
        with w.block(f"for t in range(warp, tokens, {STEP_WARPS[splits]}):"):
            w(f"""
                first = i64(sequence) * tokens + t; place = first * value_heads + h
                gate = P.ldg2(projected + first * row_stride + z_at)
                o0, o1, o2, o3 = P.ldg_l2_f4(partial + (place * {DIM} + lane * 4) * 4)
            """)
            _gated_norm(w)


def make(splits: int) -> Any:
    return P.function_of(source(splits), "kernel", P=P)
