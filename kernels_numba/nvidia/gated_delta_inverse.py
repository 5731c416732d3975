"""The inverse of a chunk's system I + A, in shared memory.

It grows by halves: of diagonal blocks of 16 by elimination, a column a lane; then from blocks T0, T1 on the diagonal
and the system's A10 below them, T10 = -T1 (A10 T0).
"""

from __future__ import annotations

from kernels_numba.nvidia.gated_delta_layout import CHUNK, CHUNK_QUERY, CHUNK_SYSTEM, PITCH
from kernels_numba.nvidia.text import Source

WARPS = 4
BLOCK = 16
"""Rows of the blocks inverted first, one by a warp."""


def invert(w: Source) -> None:
    """From the columns of A, strictly lower, to the rows of the inverse where the query was; float32.

    Above the diagonal it may be anything, and where A was nothing is left of it.
    """
    _invert_blocks(w)
    for size in (BLOCK, 2 * BLOCK):
        _join_blocks(w, size)


def _invert_blocks(w: Source) -> None:
    """A warp's block on the diagonal: lane c eliminates column c, the upper half of the warp does the same again."""
    w(f"c = i32(lane & {BLOCK - 1}); at = i32(sm + {CHUNK_SYSTEM} + warp * {BLOCK * (PITCH + 4)})")
    for i in range(BLOCK):
        w(f"t{i} = f32(0)\nif c == {i}:\n    t{i} = f32(1)")
    for j in range(BLOCK - 1):
        for i in range((j + 1) // 4 * 4, BLOCK, 4):
            w(f"y = P.lds_f4(u32(at + {j * PITCH + i * 4}))")
            for n in range(max(i, j + 1), i + 4):
                w(f"t{n} -= y[{n - i}] * t{j}")
    w(f"to = i32(sm + {CHUNK_QUERY} + warp * {BLOCK * (PITCH + 4)} + c * 4)")
    for i in range(BLOCK):
        w(f"P.sts_f(u32(to + {i * PITCH}), t{i})")
    w("P.bar_sync()")


def _log2(power: int) -> int:
    return power.bit_length() - 1


def _join_blocks(w: Source, size: int) -> None:
    """Inverses of ``size`` rows become those of twice as many; the product in between lies above the system."""
    threads = 32 * WARPS * 2 * size // CHUNK  # of a pair of blocks
    rows = size * size // threads  # of a thread, in one column
    w(f"""
        base = i32((tid >> {_log2(threads)}) * {2 * size}); c = i32(tid & {size - 1})
        r = i32(((tid & {threads - 1}) >> {_log2(size)}) * {rows})
        upper = i32(sm + {CHUNK_QUERY} + base * {PITCH + 4}); lower = i32(upper + {size * (PITCH + 4)})
        below = i32(sm + {CHUNK_SYSTEM} + base * {PITCH + 4} + {size * 4})
        between = i32(sm + {CHUNK_SYSTEM} + base * {PITCH + 4} + {size * PITCH})
    """)
    w("\n".join(f"y{m} = f32(0)" for m in range(rows)))
    with w.block(f"for k in range({size}):"):
        w(f"x = P.lds_f(u32(upper + k * {PITCH} + c * 4))")
        for m in range(0, rows, 4):
            w(f"f = P.lds_f4(u32(below + k * {PITCH} + (r + {m}) * 4))")
            w("; ".join(f"y{m + n} += f[{n}] * x" for n in range(4)))
    for m in range(rows):
        w(f"P.sts_f(u32(between + (r + {m}) * {PITCH} + c * 4), y{m}); y{m} = f32(0)")
    w("P.bar_sync()")
    with w.block(f"for k in range(0, {size}, 4):"):
        for n in range(4):
            w(f"x{n} = P.lds_f(u32(between + (k + {n}) * {PITCH} + c * 4))")
        for m in range(rows):
            w(f"f = P.lds_f4(u32(lower + (r + {m}) * {PITCH} + k * 4))")
            w(f"y{m} -= " + " + ".join(f"f[{n}] * x{n}" for n in range(4)))
    for m in range(rows):
        w(f"P.sts_f(u32(lower + (r + {m}) * {PITCH} + c * 4 - {4 * size}), y{m})")
        w(f"P.sts_f(u32(upper + (r + {m}) * {PITCH} + c * 4 + {4 * size}), f32(0))")
    w("P.bar_sync()")
