"""Pairs of tokens and experts, put together by expert: one block.

Where a pair comes in its expert's list is a matter of timing, and nothing depends on it: it gets the same numbers at
any place, and those of a token are added in the order of its experts.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.moe_kernels import COLUMNS, GROUP_THREADS
from kernels_numba.nvidia.text import Source

PARAMETERS = "chosen items tokens slots pairs experts top_k most_items"


def source() -> str:
    """Items are (expert, first slot, slots, 0), at most ``COLUMNS`` slots each; those left over have none."""
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        counts = P.smem_base(); tid = i32(P.tid_x()); cursors = i32(counts + experts * 4)
        for expert in range(tid, experts, {GROUP_THREADS}):
            P.sts1(u32(counts + expert * 4), u32(0))
        P.bar_sync()
        for pair in range(tid, pairs, {GROUP_THREADS}):
            P.atom_add_s(u32(counts + i32(P.ldg_i(chosen + i64(pair) * 4)) * 4), u32(1))
        P.bar_sync()
    """)
    with w.block(f"for expert in range(tid, experts + 1, {GROUP_THREADS}):"):
        w(f"""
            first = i32(0); item = i32(0)
            for before in range(expert):
                others = i32(P.lds1(u32(counts + before * 4)))
                first = i32(first + others); item = i32(item + ((others + {COLUMNS - 1}) >> {COLUMNS.bit_length() - 1}))
        """)
        with w.block("if expert < experts:"):
            w("P.sts1(u32(cursors + expert * 4), u32(first)); left = i32(P.lds1(u32(counts + expert * 4)))")
            with w.block("while left > 0:"):
                w(f"""
                    some = i32(P.i_min(u32(left), u32({COLUMNS})))
                    P.stg4(items + i64(item) * 16, u32(i32(expert)), u32(first), u32(some), u32(0))
                    item = i32(item + 1); first = i32(first + some); left = i32(left - some)
                """)
        with w.block("else:"), w.block("for i in range(item, most_items):"):
            w("P.stg4(items + i64(i) * 16, u32(0), u32(0), u32(0), u32(0))")
    w("P.bar_sync()")
    with w.block(f"for pair in range(tid, pairs, {GROUP_THREADS}):"):
        w("""
            slot = i32(P.atom_add_s(u32(cursors + i32(P.ldg_i(chosen + i64(pair) * 4)) * 4), u32(1)))
            P.stg1(tokens + i64(slot) * 4, P.u_div(u32(i32(pair)), u32(top_k)))
            P.stg1(slots + i64(pair) * 4, u32(slot))
        """)
    return str(w)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)
