"""How the blocks that take tokens one by one share the states: a block a value head, a lane 4 columns of 16 rows.

Lane 4 g + c of a warp holds the columns 4 c to 4 c + 3 of the warp's 16, in the rows 32 j + 4 g + e for j and e of 0 to
3, as ``s{j}{e}_{column}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kernels_numba.nvidia.gated_delta_layout import DIM, HISTORY
from kernels_numba.nvidia.text import Source, exp


def places(w: Source) -> None:
    """Indices of the thread, its block's heads and slot, and its channels of the conv.

    ``own``: the first of the lane's columns in the head. ``kc`` and ``vc``: a channel of query or key, one of value.
    """
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        rg = i32(lane >> 2); own = i32(warp * 16 + (lane & 3) * 4)
        h = i32(P.cta_x()); sequence = i32(P.cta_y()); slot = P.ldg_l(slots + i64(sequence) * 8)
        hk = i32(P.u_div(u32(h), u32(group)))
        channels = i32({2 * DIM} * key_heads + {DIM} * value_heads)
        kc = i32(((tid >> 7) * key_heads + hk) * {DIM} + (tid & {DIM - 1}))
        vc = i32({2 * DIM} * key_heads + h * {DIM} + (tid & {DIM - 1}))
    """)


def state_parts() -> Iterator[tuple[int, int]]:
    """The rows of a lane, j and e."""
    return ((j, e) for j in range(4) for e in range(4))


def load_state(w: Source) -> None:
    w(f"at = state + slot * state_stride + ((i64(h) * {DIM} + rg * 4) * {DIM} + own) * 4")
    for j, e in state_parts():
        names = ", ".join(f"s{j}{e}_{c}" for c in range(4))
        w(f"{names} = P.ldg_f4(at + {(32 * j + e) * DIM * 4})")


def store_state(w: Source) -> None:
    for j, e in state_parts():
        names = ", ".join(f"s{j}{e}_{c}" for c in range(4))
        w(f"P.stg_f4(at + {(32 * j + e) * DIM * 4}, {names})")


@contextmanager
def rolled(w: Source, name: str, start: str, stop: str, step: int = 1) -> Iterator[None]:
    """What is added within is the body of a loop over ``range(start, stop, step)`` that compilers leave as it is."""
    w(f"{name} = i32({start})")
    with w.block(f"while P.below({name}, i32({stop})) != u32(0):"):
        w("P.no_unroll()")
        yield
        w(f"{name} = i32({name} + {step})")


def products_with_state(w: Source, query: str, key: str, beside: Mapping[str, tuple[str, str]]) -> None:
    """``y0`` to ``y3`` = keyᵀ S and ``z0`` to ``z3`` = queryᵀ S, ``qq`` and ``kk`` squares, of this lane's rows.

    ``query`` and ``key`` are addresses in shared memory. ``beside``: further products of ``q`` and ``k`` by name.
    """
    products = {"qq": ("q", "q"), "kk": ("k", "k"), **beside}
    for j in range(4):
        w(f"q = P.lds_f4(u32({query} + rg * 16 + {128 * j})); k = P.lds_f4(u32({key} + rg * 16 + {128 * j}))")
        for name, (a, b) in products.items():
            w(f"{name} {'+=' if j else '='} " + " + ".join(f"{a}[{e}] * {b}[{e}]" for e in range(4)))
        for c in range(4):
            for name, a in (("y", "k"), ("z", "q")):
                w(f"{name}{c} {'+=' if j else '='} " + " + ".join(f"{a}[{e}] * s{j}{e}_{c}" for e in range(4)))


def load_pending(w: Source) -> None:
    """Start to copy the pending rows that count; ``count`` of them.

    Needs ``keys``, ``deltas`` and ``log_decays`` to point at the rows of the layer in slot 0, and their slot strides.
    Key and delta of row t go to shared memory, row t and row ``room + t`` of 512 bytes.
    """
    w(f"""
        count = i32(P.ldg_l(accepted + i64(sequence) * 8))
        key_at = keys + slot * keys_stride + i64(hk) * {4 * DIM}
        delta_at = deltas + slot * deltas_stride + i64(h) * {4 * DIM}
        decay_at = log_decays + slot * decays_stride + i64(h) * 4
    """)
    with rolled(w, "piece", "tid", "count * 64", 256):
        w(f"""
            r = i32(piece >> 6); part = i32((piece & 31) * 16)
            source = key_at + i64(r) * key_heads * {4 * DIM}; to = i32(r)
            if piece & 32:
                source = delta_at + i64(r) * value_heads * {4 * DIM}; to = i32(r + room)
            P.cp_async16(u32(sm + to * {4 * DIM} + part), source + part)
        """)
    w("P.cp_commit()")
    w("""
        newest = i32(P.u_max(u32(count), u32(1))) - 1
        weight = P.ldg_f(decay_at + i64(P.i_min(u32(lane), u32(newest))) * value_heads * 4)
    """)


def fold_pending(w: Source) -> None:
    """The pending rows that count become part of the state, in registers and in memory.

    A row decays until the last of them, as the state does.
    """
    w("last = P.shfl_idx_f(weight, u32(newest))")
    w(f"""
        kept = {exp("last")}; weight = {exp("last - weight")}
        if count == 0:
            kept = f32(1)
        if tid < count:
            P.sts_f(u32(sm + room * {8 * DIM} + tid * 4), weight)
        copies_done(); P.bar_sync()
    """)
    for j in range(4):  # few registers a loop: some targets would keep those of all rows twice
        for e in range(4):
            w("; ".join(f"s{j}{e}_{c} *= kept" for c in range(4)))
        with rolled(w, "t", "0", "count"):
            w(f"share = P.lds_f(u32(sm + room * {8 * DIM} + t * 4))")
            w(f"delta = P.lds_f4(u32(sm + (t + room) * {4 * DIM} + own * 4))")
            w(f"key = P.lds_f4(u32(sm + t * {4 * DIM} + {128 * j} + rg * 16))")
            w("; ".join(f"d{c} = share * delta[{c}]" for c in range(4)))
            for e in range(4):
                w("; ".join(f"s{j}{e}_{c} = P.fmaf(key[{e}], d{c}, s{j}{e}_{c})" for c in range(4)))
    with w.block("if count > 0:"):
        store_state(w)


def load_history(w: Source, c: str) -> None:
    """``{c}h0`` to ``{c}h2``: the last inputs of channel ``{c}c`` before the rows to come, the oldest first.

    Needs ``conv`` and ``inputs`` to point at the layer in slot 0. They come from what the conv state remembers and,
    behind that, from the pending rows that count.
    """
    w(f"{c}_at = conv + slot * conv_stride + i64({c}c) * {2 * HISTORY}")
    w(f"{c}p_at = inputs + slot * inputs_stride + i64({c}c) * 2")
    for i in range(HISTORY):
        w(f"""
            source = {c}_at + i64(count + {i}) * 2
            if count + {i} >= {HISTORY}:
                source = {c}p_at + i64(count + {i - HISTORY}) * channels * 2
            {c}h{i} = P.ldg_u16(source)
        """)


def store_history(w: Source, c: str) -> None:
    w("; ".join(f"P.stg_u16({c}_at + {2 * i}, {c}h{i})" for i in range(HISTORY)))
