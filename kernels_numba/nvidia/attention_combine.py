"""The second half of decode attention: the splits of every sequence become one output, times the sigmoid of its gate.

Grid: (head_dim / 16, kv heads, sequences). A warp takes every ``COMBINE_WARPS``-th split of its sequence. The
fragments are those that ``attention_split.py`` leaves, so a lane holds 2 heads of 2 dimensions.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS as WARPS
from kernels_numba.nvidia.text import Source, sigmoid

AHEAD = 4
"""Splits whose loads a warp has under way."""
PARAMETERS = "partial statistics plan gate out gate_bytes group exponent"
NONE, MASKED = "f32(-1e30)", "f32(-2e30)"


def source(head_dim: int) -> str:
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        tile = i32(P.cta_x()); head = i32(P.cta_y()); sequence = i32(P.cta_z()); kv_heads = i32(P.ncta_y())
        columns = i32((head * group + 2 * q) * {head_dim} + tile * 16 + g)
        gates = gate + i64(sequence) * gate_bytes + i64(columns) * 2
        where = P.ldg2(plan + i64(sequence) * 8); first = i32(where[0]); splits = i32(where[1])
        m0 = {NONE}; m1 = {NONE}; l0 = f32(0); l1 = f32(0)
        o0 = f32(0); o1 = f32(0); o2 = f32(0); o3 = f32(0)
        split = warp
    """)
    with w.block("while split < splits:"):
        for k in range(AHEAD):
            w(f"""
                at{k} = i64(first + P.i_min(u32(split + {k * WARPS}), u32(splits - 1))) * kv_heads + head
                z{k} = P.ldg_f4(statistics + at{k} * 64 + q * 16)
                v{k} = P.ldg_f4(partial + (at{k} * {head_dim // 16} + tile) * 512 + lane * 16)
            """)
        w("u0 = m0; u1 = m1")
        for k in range(AHEAD):
            w(f"x{k} = z{k}[0]; y{k} = z{k}[2]")
            if k:
                with w.block(f"if split + {k * WARPS} >= splits:"):
                    w(f"x{k} = {MASKED}; y{k} = {MASKED}")
            w(f"u0 = P.fmaxf(u0, x{k}); u1 = P.fmaxf(u1, y{k})")
        w("""
            r0 = P.ex2((m0 - u0) * exponent); r1 = P.ex2((m1 - u1) * exponent); m0 = u0; m1 = u1
            l0 *= r0; l1 *= r1; o0 *= r0; o1 *= r1; o2 *= r0; o3 *= r1
        """)
        for k in range(AHEAD):
            w(f"""
                r0 = P.ex2((x{k} - u0) * exponent); r1 = P.ex2((y{k} - u1) * exponent)
                l0 += r0 * z{k}[1]; l1 += r1 * z{k}[3]
                o0 += r0 * v{k}[0]; o1 += r1 * v{k}[1]; o2 += r0 * v{k}[2]; o3 += r1 * v{k}[3]
            """)
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
        w(f"z{warp} = P.lds_f4(u32(sm + {WARPS * 512 + warp * 64} + q * 16))")
        w(f"v{warp} = P.lds_f4(u32(sm + {warp * 512} + lane * 16))")
    w("u0 = m0; u1 = m1")
    for warp in range(1, WARPS):
        w(f"u0 = P.fmaxf(u0, z{warp}[0]); u1 = P.fmaxf(u1, z{warp}[2])")
    w("""
        r0 = P.ex2((m0 - u0) * exponent); r1 = P.ex2((m1 - u1) * exponent)
        l0 *= r0; l1 *= r1; o0 *= r0; o1 *= r1; o2 *= r0; o3 *= r1
    """)
    for warp in range(1, WARPS):
        w(f"""
            r0 = P.ex2((z{warp}[0] - u0) * exponent); r1 = P.ex2((z{warp}[2] - u1) * exponent)
            l0 += r0 * z{warp}[1]; l1 += r1 * z{warp}[3]
            o0 += r0 * v{warp}[0]; o1 += r1 * v{warp}[1]; o2 += r0 * v{warp}[2]; o3 += r1 * v{warp}[3]
        """)
    w("""
        i0 = P.rcp(l0); i1 = P.rcp(l1)
        if splits == 0:
            i0 = f32(0); i1 = f32(0)
    """)
    w(f"target = out + (i64(sequence) * kv_heads * group * {head_dim} + columns) * 2")
    for column in range(2):
        with w.block(f"if 2 * q + {column} < group:"):
            for half in range(2):
                offset = 2 * (column * head_dim + 8 * half)
                w(f"x = P.bits_f(P.u_shl(P.ldg_u16(gates + {offset}), u32(16)))")
                w(f"y = o{column + 2 * half} * i{column} * {sigmoid('x')}")
                w(f"P.stg_u16(target + {offset}, P.bf2_pack(y, y))")
    return str(w)


def make(head_dim: int) -> Any:
    return P.function_of(source(head_dim), "kernel", P=P)
