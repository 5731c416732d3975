"""How the slots of a grid are shared out among sequences: code of kernels, and the same in Python.

A sequence with pages gets one slot and, of the rest, its part by pages, rounded down; but not more than it has steps.
Both kernels of decode attention find the slots of a sequence on their own, by lengths in device memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_numba.nvidia.attention_kernels import PAGE_TOKENS
from kernels_numba.nvidia.text import WARP_OFFSETS, Source


def shares(pages: Sequence[int], slots: int, step_pages: int) -> list[int]:
    """Slots of sequences of so many pages."""
    total, spare = sum(pages), slots - len(pages)
    return [min(1 + own * spare // total, -(-own // step_pages)) if own else 0 for own in pages]


def find_share(w: Source, wanted: str) -> None:
    """``sequence``, its ``length`` without ``behind``, ``first`` and ``used``: its slots. Sequence -1 if there is none.

    ``wanted`` tells, by ``s``, ``begin`` and ``share``, whether sequence s with the slots ``[begin, begin + share)`` is
    the one. Of the kernel: ``lengths``, ``behind``, ``slots``, ``sequences``, ``lane``, ``step_pages``.
    """
    w("""
        total = i32(0); sequence = i32(-1); length = i32(0); first = i32(0); used = i32(0); begin = i32(0)
        base = i32(0)
        for t in range(lane, sequences, 32):
            own = i32(i32(P.ldg_l(lengths + i64(t) * 8)) - behind)
            if own > 0:
                total = i32(total + ((own + 63) >> 6))
    """)
    for offset in WARP_OFFSETS:
        w(f"total = i32(total + i32(P.shfl_xor(u32(total), {offset})))")
    with w.block("while base < sequences:"):
        w(f"""
            s = i32(base + lane); own = i32(0); share = i32(0)
            if s < sequences:
                own = i32(i32(P.ldg_l(lengths + i64(s) * 8)) - behind)
            if own > 0:
                count = i32((own + {PAGE_TOKENS - 1}) >> {PAGE_TOKENS.bit_length() - 1})
                share = i32(1 + i32(P.u_div(u32(count * (slots - sequences)), u32(total))))
                share = i32(P.i_min(u32(share), P.u_div(u32(count + step_pages - 1), u32(step_pages))))
            after = i32(share)
        """)
        for offset in reversed(WARP_OFFSETS):
            w(f"""
                other = i32(P.shfl_idx(u32(after), u32((lane - {offset}) & 31)))
                if lane >= {offset}:
                    after = i32(after + other)
            """)
        w(f"""
            begin = i32(begin + after - share); found = u32(0)
            if {wanted}:
                found = u32(lane + 1)
        """)
        for offset in WARP_OFFSETS:
            w(f"found = P.u_max(found, P.shfl_xor(found, {offset}))")
        w("""
            source = u32((found - 1) & 31)
            own = i32(P.shfl_idx(u32(own), source)); place = i32(P.shfl_idx(u32(begin), source))
            mine = i32(P.shfl_idx(u32(share), source))
            if found > 0:
                sequence = i32(base + i32(found) - 1); length = own; first = place; used = mine
            begin = i32(i32(P.shfl_idx(u32(begin), u32(31))) + i32(P.shfl_idx(u32(share), u32(31))))
            base = i32(base + 32)
        """)
