"""SiLU of the gate times up, bfloat16: a vector of 8 results per thread."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.norms_kernels import SILU_THREADS
from kernels_numba.nvidia.text import Source, bf16, silu

PARAMETERS = "gate_up out row_stride width"


def source() -> str:
    """Rows ``gate | up`` of ``width`` values each, a multiple of 8; ``row_stride`` in bytes."""
    w = Source("kernel", PARAMETERS)
    w(f"vector = i32(P.cta_x()) * {SILU_THREADS} + i32(P.tid_x()); row = i64(P.cta_y())")
    w("P.pdl_launch(); P.pdl_wait()")
    with w.block("if vector * 8 < width:"):
        w("at = gate_up + row * row_stride + vector * 16; gate = P.ldg4(at); up = P.ldg4(at + width * 2)")
        for j in range(4):
            w(f"even = {bf16(f'gate[{j}]', 0)}; odd = {bf16(f'gate[{j}]', 1)}")
            products = ", ".join(f"{silu(x)} * {bf16(f'up[{j}]', h)}" for h, x in enumerate(("even", "odd")))
            w(f"word{j} = P.bf2_pack({products})")
        w("P.stg4(out + row * width * 2 + vector * 16, word0, word1, word2, word3)")
    return str(w)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
