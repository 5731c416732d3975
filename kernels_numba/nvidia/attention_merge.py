"""Attention over stretches of a context becomes attention over all of it, times the sigmoid of a gate.

Grid: (rows, heads / MERGE_WARPS). A warp takes one head of a row, a lane 8 dimensions. ``part``: outputs
``[rows][heads][head dim]`` in bfloat16 that are normalised over their stretch; ``lse``: log-sum-exps of the scores,
float32 ``[heads][rows]``. Of ``count`` stretches, at most MERGED.

With a gate of address 0 the output and its log-sum-exp are again those of a stretch.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import MERGE_WARPS, MERGED
from kernels_numba.nvidia.text import LOG2_E, Source, bf16, sigmoid

PARAMETERS = " ".join(f"part{k} lse{k}" for k in range(MERGED)) + " gate out out_lse gate_bytes count rows heads"
HEAD_DIM = 256


def source() -> str:
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        lane = i32(P.lane_id()); row = i32(P.cta_x()); head = i32(i32(P.cta_y()) * {MERGE_WARPS} + i32(P.tid_x() >> 5))
        if head >= heads:
            return
        column = i64(head * {HEAD_DIM} + lane * 8) * 2; place = i64(row) * heads * {2 * HEAD_DIM} + column
        score = (i64(head) * rows + row) * 4; most = P.ldg_f(lse0 + score); total = f32(1); x = P.ldg4(part0 + place)
    """)
    for i in range(8):
        w(f"o{i} = {bf16(f'x[{i // 2}]', i % 2)}")
    for k in range(1, MERGED):
        with w.block(f"if count > {k}:"):
            w(f"""
                z = P.ldg_f(lse{k} + score); x = P.ldg4(part{k} + place); top = P.fmaxf(most, z)
                own = P.ex2((most - top) * f32({LOG2_E})); other = P.ex2((z - top) * f32({LOG2_E}))
                most = top; total = total * own + other
            """)
            for i in range(8):
                w(f"o{i} = o{i} * own + other * {bf16(f'x[{i // 2}]', i % 2)}")
    w("scale = P.rcp(total)")
    with w.block("if gate == 0:"):
        w(f"P.stg4(out + place, {_packed('scale')})")
        w(f"if lane == 0:\n    P.stg_f(out_lse + score, most + P.lg2(total) * f32({1 / LOG2_E}))")
        w("return")
    w("x = P.ldg4(gate + i64(row) * gate_bytes + column)")
    for i in range(8):
        w(f"y = {bf16(f'x[{i // 2}]', i % 2)}; o{i} *= {sigmoid('y')}")
    w(f"P.stg4(out + place, {_packed('scale')})")
    return str(w)


def _packed(factor: str) -> str:
    return ", ".join(f"P.bf2_pack(o{2 * i} * {factor}, o{2 * i + 1} * {factor})" for i in range(4))


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
