"""The sum of a token's experts, each times its weight, and of the gated shared expert: four results a thread."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.moe_kernels import COMBINE_THREADS
from kernels_numba.nvidia.text import Source, bf16, sigmoid

PARAMETERS = "products weights slots gate shared out gate_stride shared_stride width top_k"
"""``gate``: of the first token, bfloat16, then one every ``gate_stride`` values; ``shared`` likewise, in rows."""


def source() -> str:
    """Experts are added in the order of their ranks."""
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        column = (i32(P.cta_x()) * {COMBINE_THREADS} + i32(P.tid_x())) * 4; token = i64(P.cta_y())
    """)
    with w.block("if column < width:"):
        w("s0 = s1 = s2 = s3 = f32(0)")
        with w.block("for rank in range(top_k):"):
            w("""
                pair = token * top_k + rank
                weight = P.ldg_f(weights + pair * 4)
                v = P.ldg_f4(products + (i64(P.ldg_i(slots + pair * 4)) * width + column) * 4)
                s0 += weight * v[0]; s1 += weight * v[1]; s2 += weight * v[2]; s3 += weight * v[3]
            """)
        w(f"""
            logit = P.bits_f(P.u_shl(P.ldg_u16(gate + token * gate_stride * 2), u32(16)))
            opened = {sigmoid("logit")}
            theirs = P.ldg2(shared + (token * shared_stride + column) * 2)
            low = P.bf2_pack(s0 + opened * {bf16("theirs[0]", 0)}, s1 + opened * {bf16("theirs[0]", 1)})
            high = P.bf2_pack(s2 + opened * {bf16("theirs[1]", 0)}, s3 + opened * {bf16("theirs[1]", 1)})
            P.stg2(out + (token * width + column) * 2, low, high)
        """)
    return str(w)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
