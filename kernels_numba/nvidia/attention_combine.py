"""The second half of decode attention: the splits of every sequence become one output, times the sigmoid of its gate.

Grid: (head_dim / 16, kv heads, sequences * tiles). A warp takes every ``COMBINE_WARPS``-th split of its sequence. The
fragments are those that the first half leaves (``attention_split``, ``attention_paged``), so a lane holds 2 columns of
2 dimensions. Column = token * group + head.

What it reads before the first half has ended, lengths and gates, was there before that began.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS as WARPS
from kernels_numba.nvidia.attention_shares import find_share
from kernels_numba.nvidia.text import Source, sigmoid

AHEAD = 8
"""Splits whose loads a warp has under way."""
PARAMETERS = (
    "partial statistics lengths gate out sequences gate_bytes group tokens row_tokens behind "
    "slots step_pages tiles exponent"
)
NONE, MASKED = "f32(-1e30)", "f32(-2e30)"


def source(head_dim: int) -> str:
    w = Source("kernel", PARAMETERS)
    w("""
        P.pdl_launch()
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        slice16 = i32(P.cta_x()); head = i32(P.cta_y()); kv_heads = i32(P.ncta_y())
        mine = i32(P.u_div(P.cta_z(), u32(tiles))); tile = i32(i32(P.cta_z()) - mine * tiles)
        wanted = i32(mine)
    """)
    find_share(w, "s == wanted")
    for c in range(2):
        w(f"""
            column = i32(P.i_min(u32(8 * tile + 2 * q + {c}), u32(tokens * group - 1)))
            token = i32(P.u_div(u32(column), u32(group)))
            row = i64(wanted * row_tokens + token)
            place = i32((head * group + column - token * group) * {head_dim} + slice16 * 16 + g)
            gates = gate + row * gate_bytes + place * 2
            target{c} = out + (row * (kv_heads * group * {head_dim}) + place) * 2
            v{c} = {sigmoid("P.bits_f(P.u_shl(P.ldg_u16(gates), u32(16)))")}
            v{c + 2} = {sigmoid("P.bits_f(P.u_shl(P.ldg_u16(gates + 16), u32(16)))")}
        """)
    w(f"""
        P.pdl_wait()
        m0 = {NONE}; m1 = {NONE}; l0 = f32(0); l1 = f32(0); o0 = f32(0); o1 = f32(0); o2 = f32(0); o3 = f32(0)
        split = i32(warp); most = i32(used - 1)
    """)
    with w.block("while split < used:"):
        for k in range(AHEAD):
            w(f"""
                at = (i64(first + P.i_min(u32(split + {k * WARPS}), u32(most))) * kv_heads + head) * tiles + tile
                z{k} = P.ldg_f4(statistics + at * 64 + q * 16)
                x{k} = P.ldg_f4(partial + (at * {head_dim // 16} + slice16) * 512 + lane * 16)
            """)
        w("u0 = m0; u1 = m1")
        for k in range(AHEAD):
            w(f"a{k} = z{k}[0]; b{k} = z{k}[2]")
            if k:
                with w.block(f"if split + {k * WARPS} > most:"):
                    w(f"a{k} = {MASKED}; b{k} = {MASKED}")
            w(f"u0 = P.fmaxf(u0, a{k}); u1 = P.fmaxf(u1, b{k})")
        _rescale(w)
        for k in range(AHEAD):
            w(f"r0 = P.ex2((a{k} - u0) * exponent); r1 = P.ex2((b{k} - u1) * exponent)")
            _add(w, f"z{k}", f"x{k}")
        w(f"split = i32(split + {AHEAD * WARPS})")
    w(f"""
        P.sts_f4(u32(sm + warp * 512 + lane * 16), o0, o1, o2, o3)
        if g == 0:
            P.sts_f4(u32(sm + {WARPS * 512} + warp * 64 + q * 16), m0, l0, m1, l1)
        P.bar_sync()
        if warp > 0:
            return
    """)
    for warp in range(1, WARPS):
        w(f"c{warp} = P.lds_f4(u32(sm + {WARPS * 512 + warp * 64} + q * 16))")
        w(f"d{warp} = P.lds_f4(u32(sm + {warp * 512} + lane * 16))")
    w("u0 = m0; u1 = m1")
    for warp in range(1, WARPS):
        w(f"u0 = P.fmaxf(u0, c{warp}[0]); u1 = P.fmaxf(u1, c{warp}[2])")
    _rescale(w)
    for warp in range(1, WARPS):
        w(f"r0 = P.ex2((c{warp}[0] - u0) * exponent); r1 = P.ex2((c{warp}[2] - u1) * exponent)")
        _add(w, f"c{warp}", f"d{warp}")
    for column in range(2):
        # rows that see nothing, as of an empty sequence, yield zeros
        w(f"i{column} = P.rcp(l{column})\nif l{column} == f32(0):\n    i{column} = f32(0)")
        with w.block(f"if 8 * tile + 2 * q + {column} < tokens * group:"):
            for half in range(2):
                w(f"y = o{column + 2 * half} * i{column} * v{column + 2 * half}")
                w(f"P.stg_u16(target{column} + {16 * half}, P.bf2_pack(y, y))")
    return str(w)


def _rescale(w: Source) -> None:
    w("""
        r0 = P.ex2((m0 - u0) * exponent); r1 = P.ex2((m1 - u1) * exponent); m0 = u0; m1 = u1
        l0 *= r0; l1 *= r1; o0 *= r0; o1 *= r1; o2 *= r0; o3 *= r1
    """)


def _add(w: Source, statistics: str, fragment: str) -> None:
    w(f"l0 += r0 * {statistics}[1]; l1 += r1 * {statistics}[3]")
    w("; ".join(f"o{i} += r{i % 2} * {fragment}[{i}]" for i in range(4)))


def make(head_dim: int) -> Any:
    return P.function_of(source(head_dim), "kernel", P=P)
