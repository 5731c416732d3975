"""Reads memory and nothing else: what the bandwidth of every other kernel is measured against."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.ptx import i32, i64, u32

CHUNK_BYTES = 32768
THREADS = 512


def make() -> Any:
    """``kernel(source, out, chunks)``: every thread reads 4 x 16 bytes of each chunk that is its block's turn."""

    def kernel(source, out, chunks):  # type: ignore[no-untyped-def]
        tid = i32(P.tid_x())
        total = u32(0)
        chunk = i32(P.cta_x())
        step = i32(P.ncta_x())
        while chunk < chunks:
            at = source + i64(chunk) * CHUNK_BYTES + tid * 16
            v = P.ldg_stream4(at)
            w = P.ldg_stream4(at + 8192)
            x = P.ldg_stream4(at + 16384)
            y = P.ldg_stream4(at + 24576)
            total = P.u_xor(total, P.u_xor(P.u_xor(v[0], v[1]), P.u_xor(v[2], v[3])))
            total = P.u_xor(total, P.u_xor(P.u_xor(w[0], w[1]), P.u_xor(w[2], w[3])))
            total = P.u_xor(total, P.u_xor(P.u_xor(x[0], x[1]), P.u_xor(x[2], x[3])))
            total = P.u_xor(total, P.u_xor(P.u_xor(y[0], y[1]), P.u_xor(y[2], y[3])))
            chunk = i32(chunk + step)
        if total == u32(0x12345678):  # never, but the compiler cannot know
            P.stg1(out, total)

    return kernel
