"""RMS norm of bfloat16 rows, with or without a residual added before: one block a row."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.norms_kernels import SUMS_BYTES
from kernels_numba.nvidia.text import Source, bf16

PARAMETERS = "x residual weight total out x_stride residual_stride width eps"


def source(add: bool) -> str:
    """``width`` is a multiple of 8; strides are in bytes; ``residual`` and ``total`` are only touched with ``add``.

    A thread takes every ``threads``-th vector of 8 values. The row, rounded to bfloat16 once it is added, waits in
    shared memory for its factor. The weight of a thread's first vector is fetched before the sums meet.
    """
    w = Source("kernel", PARAMETERS)
    w("""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5); threads = i32(P.ntid_x())
        vectors = i32(width >> 3); row = i64(P.cta_x())
        x += row * x_stride; residual += row * residual_stride; total += row * width * 2; out += row * width * 2
        first = i64(P.i_min(u32(tid), u32(vectors - 1))) * 32
        wa = P.ldg_f4(weight + first); wb = P.ldg_f4(weight + first + 16)
        square = f32(0)
        P.pdl_launch(); P.pdl_wait()
    """)
    with w.block("for i in range(tid, vectors, threads):"):
        w("a = P.ldg4(x + i * 16)")
        if add:
            w("b = P.ldg4(residual + i * 16)")
            for j in range(4):
                even, odd = (f"{bf16(f'a[{j}]', half)} + {bf16(f'b[{j}]', half)}" for half in (0, 1))
                w(f"s{j} = P.bf2_pack({even}, {odd})")
            w("P.stg4(total + i * 16, s0, s1, s2, s3)")
        else:
            w("s0 = a[0]; s1 = a[1]; s2 = a[2]; s3 = a[3]")
        w(f"P.sts4(u32(sm + {SUMS_BYTES} + i * 16), s0, s1, s2, s3)")
        for j in range(4):
            w(f"even = {bf16(f's{j}', 0)}; odd = {bf16(f's{j}', 1)}; square += even * even; square += odd * odd")
    w.warp_sum("square")
    w("""
        if lane == 0:
            P.sts_f(u32(sm + warp * 4), square)
        P.bar_sync()
        square = f32(0)
        if lane < (threads >> 5):
            square = P.lds_f(u32(sm + lane * 4))
    """)
    w.warp_sum("square")
    w("factor = P.rsqrt(square / f32(width) + eps)")
    with w.block("if tid < vectors:"):
        _scaled(w, "tid")
    with w.block("for i in range(tid + threads, vectors, threads):"):
        w("wa = P.ldg_f4(weight + i * 32); wb = P.ldg_f4(weight + i * 32 + 16)")
        _scaled(w, "i")
    return str(w)


def _scaled(w: Source, vector: str) -> None:
    words = []
    for j in range(4):
        even, odd = (f"{bf16(f'c[{j}]', h)} * factor * w{'ab'[j // 2]}[{2 * j % 4 + h}]" for h in (0, 1))
        words.append(f"P.bf2_pack({even}, {odd})")
    w(f"c = P.lds4(u32(sm + {SUMS_BYTES} + {vector} * 16))")
    w(f"P.stg4(out + {vector} * 16, {', '.join(words)})")


def make(add: bool) -> Any:
    return P.function_of(source(add), "kernel", P=P)
