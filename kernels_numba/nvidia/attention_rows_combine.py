"""The splits of every row of ``attention_rows.py`` become one output, times the sigmoid of its gate.

Grid: (rows, kv heads). A warp takes every ``COMBINE_WARPS``-th split, a lane 4 dimensions of every 128.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS
from kernels_numba.nvidia.text import Source, bf16, sigmoid

AHEAD = 2
"""Splits whose loads a warp has under way."""
PARAMETERS = "partial statistics gate out splits tile_rows group gate_bytes exponent"
NONE, MASKED = "f32(-1e30)", "f32(-2e30)"


def source(head_dim: int) -> str:
    """``tile_rows``: rows of all tiles of a kv head, which a split's partial results have."""
    vectors = range(head_dim // 128)
    row_bytes = 4 * head_dim
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        row = i32(P.cta_x()); head = i32(P.cta_y()); kv_heads = i32(P.ncta_y())
        m = {NONE}; l = f32(0); split = warp
    """)
    for v in vectors:
        w("; ".join(f"o{v}_{i} = f32(0)" for i in range(4)))
    with w.block("while split < splits:"):
        for k in range(AHEAD):
            w(f"""
                at = i64(P.i_min(u32(split + {k * COMBINE_WARPS}), u32(splits - 1)))
                at = (at * kv_heads + head) * tile_rows + row
                z{k} = P.ldg_f2(statistics + at * 8)
            """)
            for v in vectors:
                w(f"v{k}_{v} = P.ldg_f4(partial + at * {row_bytes} + lane * 16 + {512 * v})")
        w("x = m")
        for k in range(AHEAD):
            w(f"y{k} = z{k}[0]")
            if k:
                w(f"if split + {k * COMBINE_WARPS} >= splits:\n    y{k} = {MASKED}")
            w(f"x = P.fmaxf(x, y{k})")
        _add(w, "P.ex2((m - x) * exponent)", [f"P.ex2((y{k} - x) * exponent)" for k in range(AHEAD)], vectors)
        w(f"m = x; split = i32(split + {AHEAD * COMBINE_WARPS})")
    w(f"at = i32(sm + warp * {row_bytes} + lane * 16)")
    for v in vectors:
        w(f"P.sts_f4(u32(at + {512 * v}), {', '.join(f'o{v}_{i}' for i in range(4))})")
    w(f"""
        if lane == 0:
            P.sts_f2(u32(sm + {COMBINE_WARPS * row_bytes} + warp * 8), m, l)
        P.bar_sync()
        if warp > 0:
            return
        x = m
    """)
    others = range(COMBINE_WARPS - 1)
    for k in others:
        w(f"z{k} = P.lds_f2(u32(sm + {COMBINE_WARPS * row_bytes + 8 * (k + 1)})); x = P.fmaxf(x, z{k}[0])")
        for v in vectors:
            w(f"v{k}_{v} = P.lds_f4(u32(sm + {(k + 1) * row_bytes + 512 * v} + lane * 16))")
    _add(w, "P.ex2((m - x) * exponent)", [f"P.ex2((z{k}[0] - x) * exponent)" for k in others], vectors)
    w(f"""
        scale = P.rcp(l); token = i64(P.u_div(u32(row), u32(group)))
        column = (i64(head) * group + row - token * group) * {head_dim} + lane * 4
        target = out + (token * kv_heads * group * {head_dim} + column) * 2
    """)
    for v in vectors:
        w(f"x = P.ldg2(gate + token * gate_bytes + (column + {128 * v}) * 2)")
        for i in range(4):
            w(f"y{i} = {bf16(f'x[{i // 2}]', i % 2)}; y{i} = o{v}_{i} * scale * {sigmoid(f'y{i}')}")
        w(f"P.stg2(target + {256 * v}, P.bf2_pack(y0, y1), P.bf2_pack(y2, y3))")
    return str(w)


def _add(w: Source, own: str, factors: list[str], vectors: range) -> None:
    """Sums and outputs relative to a new maximum."""
    w(f"f = {own}; l *= f")
    for v in vectors:
        w("; ".join(f"o{v}_{i} *= f" for i in range(4)))
    for k, factor in enumerate(factors):
        w(f"f = {factor}; l += f * z{k}[1]")
        for v in vectors:
            w("; ".join(f"o{v}_{i} += f * v{k}_{v}[{i}]" for i in range(4)))


def make(head_dim: int) -> Any:
    return P.function_of(source(head_dim), "kernel", P=P)
