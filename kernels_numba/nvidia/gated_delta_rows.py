"""Gated delta rule, T rows of each of any number of sequences that may yet be rejected, in one launch.

Nothing is known of acceptance while the rows are computed, so they stay out of the state: they are left pending as
rank-one updates (key, delta, log decay), with the inputs of their conv. The next round begins by folding as many of
them into the state as were accepted. So a round reads and writes a state once, however many rows it has, and what is
rejected costs nothing. Folding depends on no launch just before, so it happens before the wait for it.

With the state S that is left, the running sum G of the rows' log decay, and their raw queries and keys:
d_t = beta_t (v_t - e^{G_t} k_t S - sum over j < t of e^{G_t - G_j} (k_t·k_j) d_j);
o_t = e^{G_t} q_t S + sum over j <= t of e^{G_t - G_j} (q_t·k_j) d_j.
All products with S come first, which leaves a recursion within each column. Places of the state and the counting of
blocks are those of ``gated_delta_step``.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    BLOCK_WARPS,
    DIM,
    HISTORY,
    ROWS_BETAS,
    ROWS_COUNTED,
    ROWS_DOTS,
    ROWS_KEY_FACTORS,
    ROWS_LOG_DECAYS,
    ROWS_PRODUCTS,
    ROWS_SMALL,
    ROWS_VALUE,
    TAPS,
)
from kernels_numba.nvidia.gated_delta_state import (
    fold_pending,
    load_history,
    load_pending,
    load_state,
    places,
    products_with_state,
    store_history,
)
from kernels_numba.nvidia.text import Source, bf16, exp, sigmoid, silu, softplus
from kernels_numba.shapes import L2_EPS

PARAMETERS = """projected conv state inputs keys deltas log_decays slots accepted conv_weight decay_rate dt_bias norm
    arrivals out row_stride conv_stride state_stride inputs_stride keys_stride deltas_stride decays_stride
    tokens room key_heads value_heads group eps"""
AT_ONCE = 4
"""Rows whose inputs are fetched together."""


def source() -> str:
    """Grid (value heads, sequences); 8 warps; strides in bytes; row s * tokens + t is row t of sequence s.

    ``conv`` (bfloat16), ``state`` and the pending tensors point at the layer in slot 0. At most 16 rows; ``room`` is
    how many may be pending. ``arrivals``: a counter for every sequence and key head.
    """
    w = Source("kernel", PARAMETERS)
    places(w)
    load_pending(w)
    load_state(w)
    for c in "kv":
        load_history(w, c)
        for tap in range(TAPS):
            w(f"{c}w{tap} = P.ldg_f(conv_weight + (i64(channels) * {tap} + {c}c) * 4)")
    fold_pending(w)
    with w.block(f"if tid < {DIM}:"):
        store_history(w, "v")
    w(f"""
        bias = P.ldg_f(dt_bias + i64(h) * 4); rate = P.ldg_f(decay_rate + i64(h) * 4)
        P.bar_sync()
        P.pdl_wait()
        P.pdl_launch()
        rows = projected + i64(sequence) * tokens * row_stride
        z_at = i64(channels + h * {DIM} + lane * 4) * 2; b_at = i64(channels + {DIM} * value_heads + h) * 2
        gate = P.ldg2(rows + i64(P.i_min(u32(warp), u32(tokens - 1))) * row_stride + z_at)
        small = i32(sm + room * {ROWS_SMALL})
        row = rows + i64(P.i_min(u32(lane), u32(tokens - 1))) * row_stride + b_at
        bu = P.ldg_u16(row); au = P.ldg_u16(row + value_heads * 2)
    """)
    _conv(w)
    _gates(w)
    w("""
        P.bar_sync()
        arrived = u32(0)
        if tid == 0:
            arrived = P.atom_inc_relaxed(arrivals + (i64(sequence) * key_heads + hk) * 4, u32(group - 1))
    """)
    _products(w)
    _recursion(w)
    _outputs(w)
    _leave_key_head(w)
    return str(w)


def _gates(w: Source) -> None:
    """Lane t: beta and the running sum of the log decay of row t. All warps do it: none exchanges in a branch."""
    w(f"x = {bf16('au', 0)} + bias")
    softplus(w, "soft", "x")
    w(f"sum = rate * soft; x = {bf16('bu', 0)}; beta = {sigmoid('x')}")
    for offset in (1, 2, 4, 8):
        w(f"sum += P.shfl_up_f(sum, {offset})")
    w(f"""
        if tid < tokens:
            P.sts_f(u32(small + {ROWS_LOG_DECAYS} + lane * 4), sum); P.sts_f(u32(small + {ROWS_BETAS} + lane * 4), beta)
            P.stg_f(decay_at + i64(lane) * value_heads * 4, sum)
    """)


def _conv(w: Source) -> None:
    """Raw query and key of row t into row t of shared memory, the value behind; its input is left pending."""
    for c in "kv":
        w("; ".join(f"{c}u{i} = {c}h{i}" for i in range(HISTORY)))
    with w.block(f"for first in range(0, tokens, {AT_ONCE}):"):
        for j in range(AT_ONCE):
            w(f"row = rows + i64(P.i_min(u32(first + {j}), u32(tokens - 1))) * row_stride")
            w(f"kn{j} = P.ldg_u16(row + kc * 2); vn{j} = P.ldg_u16(row + vc * 2)")
        for j in range(AT_ONCE):
            with w.block(f"if first + {j} < tokens:"):
                for c in "kv":
                    inputs = [f"{c}u{i}" for i in range(HISTORY)] + [f"{c}n{j}"]
                    products = " + ".join(f"{bf16(u, 0)} * {c}w{tap}" for tap, u in enumerate(inputs))
                    w(f"x = {products}; {c}x = {silu('x')}")
                    w(f"{c}u0 = {c}u1; {c}u1 = {c}u2; {c}u2 = {c}n{j}")
                w(f"""
                    P.sts_f(u32(sm + (first + {j}) * {8 * DIM} + tid * 4), kx)
                    if tid < {DIM}:
                        P.sts_f(u32(sm + room * {ROWS_VALUE} + (first + {j}) * {4 * DIM} + tid * 4), vx)
                        P.stg_u16(vp_at + i64(first + {j}) * channels * 2, vn{j})
                """)


def _products(w: Source) -> None:
    """Of query and key of every row with the state, scaled; and with the keys before, a warp every eighth of those."""
    w(f"y_at = i32(sm + room * {ROWS_PRODUCTS} + own * 4); z_at_ = i32(y_at + room * {4 * DIM})")
    with w.block("for t in range(tokens):"):
        products_with_state(w, f"sm + t * {8 * DIM}", f"sm + t * {8 * DIM} + {4 * DIM}", {})
        w.warp_sum("qq", "kk", *(f"{n}{c}" for n in "yz" for c in range(4)), offsets=(16, 8, 4))
        w(f"""
            grown = P.lds_f(u32(small + {ROWS_LOG_DECAYS} + t * 4)); e = {exp("grown")}
            fq = P.rsqrt(qq + f32({L2_EPS})) * f32({DIM**-0.5}); fk = P.rsqrt(kk + f32({L2_EPS}))
            ek = e * fk; eq = e * fq
            if rg == 0:
                P.sts_f4(u32(y_at + t * {4 * DIM}), ek * y0, ek * y1, ek * y2, ek * y3)
                P.sts_f4(u32(z_at_ + t * {4 * DIM}), eq * z0, eq * z1, eq * z2, eq * z3)
            if tid == 0:
                P.sts_f(u32(small + {ROWS_KEY_FACTORS} + t * 4), fk)
        """)
        with w.block(f"for some in range(0, t + 1, {BLOCK_WARPS}):"):  # as often in all warps
            w("j = i32(P.i_min(u32(some + warp), u32(t)))")
            for i in range(4):
                at = f"sm + t * {8 * DIM} + rg * 16 + {128 * i}"
                w(f"q = P.lds_f4(u32({at})); k = P.lds_f4(u32({at} + {4 * DIM}))")
                w(f"p = P.lds_f4(u32(sm + j * {8 * DIM} + {4 * DIM + 128 * i} + rg * 16))")
                for sums, a in (("kp", "k"), ("qp", "q")):
                    w(f"{sums} {'+=' if i else '='} " + " + ".join(f"{a}[{e}] * p[{e}]" for e in range(4)))
            w.warp_sum("kp", "qp", offsets=(16, 8, 4))
            w(f"e = {exp(f'grown - P.lds_f(u32(small + {ROWS_LOG_DECAYS} + j * 4))')}")
            w(f"""
                if lane == 0 and some + warp <= t:
                    P.sts_f2(u32(sm + room * {ROWS_DOTS} + t * 128 + j * 8), e * fk * kp, e * fq * qp)
            """)
    w("P.bar_sync()")


def _recursion(w: Source) -> None:
    """A lane a column: deltas, scaled by their keys' norms, take the place of y, outputs that of z."""
    w("norms = P.ldg_f4(norm + i64(lane) * 16)")
    with w.block("if lane < 16:"):
        w(f"""
            column = i32((warp * 16 + lane) * 4)
            value_at = i32(sm + room * {ROWS_VALUE} + column); y_at = i32(sm + room * {ROWS_PRODUCTS} + column)
            z_at_ = i32(y_at + room * {4 * DIM})
        """)
        with w.block("for t in range(tokens):"):
            w(f"""
                rest = P.lds_f(u32(value_at + t * {4 * DIM})) - P.lds_f(u32(y_at + t * {4 * DIM}))
                o = P.lds_f(u32(z_at_ + t * {4 * DIM})); dots_at = i32(sm + room * {ROWS_DOTS} + t * 128)
                for j in range(t):
                    f = P.lds_f2(u32(dots_at + j * 8)); d = P.lds_f(u32(y_at + j * {4 * DIM}))
                    rest -= f[0] * d; o += f[1] * d
                d = P.lds_f(u32(small + {ROWS_BETAS} + t * 4)) * rest
                P.stg_f(delta_at + i64(t) * value_heads * {4 * DIM} + column, d)
                d *= P.lds_f(u32(small + {ROWS_KEY_FACTORS} + t * 4))
                f = P.lds_f2(u32(dots_at + t * 8))
                P.sts_f(u32(y_at + t * {4 * DIM}), d); P.sts_f(u32(z_at_ + t * {4 * DIM}), o + f[1] * d)
            """)
    w(f"if tid == 0:\n    P.sts1(u32(small + {ROWS_COUNTED}), arrived)")
    w("P.bar_sync()")


def _outputs(w: Source) -> None:
    """A warp norms every eighth row."""
    with w.block(f"for some in range(0, tokens, {BLOCK_WARPS}):"):
        w(f"""
            t = i32(P.i_min(u32(some + warp), u32(tokens - 1)))
            if some > 0:
                gate = P.ldg2(rows + i64(t) * row_stride + z_at)
            total = P.lds_f4(u32(sm + room * {ROWS_PRODUCTS + 4 * DIM} + t * {4 * DIM} + lane * 16))
            square = total[0] * total[0] + total[1] * total[1] + total[2] * total[2] + total[3] * total[3]
        """)
        w.warp_sum("square")
        w(f"scale = P.rsqrt(square * f32({1 / DIM}) + eps)")
        for c in range(4):
            w(f"x = {bf16(f'gate[{c // 2}]', c % 2)}; n{c} = total[{c}] * scale * norms[{c}] * {silu('x')}")
        w(f"to = out + (((i64(sequence) * tokens + t) * value_heads + h) * {DIM} + lane * 4) * 2")
        w("if some + warp < tokens:\n    P.stg2(to, P.bf2_pack(n0, n1), P.bf2_pack(n2, n3))")


def _leave_key_head(w: Source) -> None:
    """The conv state of query and key, and their rows, which blocks share."""
    with w.block(f"if P.lds1(u32(small + {ROWS_COUNTED})) == u32(group - 1):"):
        load_history(w, "k")  # again, which keeps registers free meanwhile
        store_history(w, "k")
        with w.block("for t in range(tokens):"):
            w(f"""
                P.stg_u16(kp_at + i64(t) * channels * 2, P.ldg_u16(rows + i64(t) * row_stride + kc * 2))
                if tid >= {DIM}:
                    key_ = P.lds_f(u32(sm + t * {8 * DIM} + tid * 4)) * P.lds_f(u32(small + {ROWS_KEY_FACTORS} + t * 4))
                    P.stg_f(key_at + i64(t) * key_heads * {4 * DIM} + (tid - {DIM}) * 4, key_)
            """)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P, copies_done=P.cp_wait(0))
