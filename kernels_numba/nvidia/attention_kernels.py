"""Kernels of attention over many rows, and the sizes that they share with their launches."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec

HEAD_DIMS = (64, 128, 256)
PAGE_TOKENS = 64
COMBINE_WARPS = 8
TILE_ROWS = 64
"""Queries of one block, where a sequence brings several tokens."""
TILE_WARPS = TILE_ROWS // 16
ROWS_HEAD_DIM = 256


def rows_shared_bytes(head_dim: int) -> int:
    """The queries, and a page of keys and of values."""
    return (TILE_ROWS + 2 * PAGE_TOKENS) * head_dim * 2


def rows_combine_shared_bytes(head_dim: int) -> int:
    return COMBINE_WARPS * (4 * head_dim + 8)


KERNELS = (
    KernelSpec(
        "attention_rows",
        "attention_rows",
        "make",
        (ROWS_HEAD_DIM,),
        "l" * 7 + "i" * 7 + "f",
        threads=32 * TILE_WARPS,
        min_blocks=2,
        registers=255,
    ),
    KernelSpec(
        "attention_rows_combine",
        "attention_rows_combine",
        "make",
        (ROWS_HEAD_DIM,),
        "l" * 4 + "i" * 4 + "f",
        threads=32 * COMBINE_WARPS,
        min_blocks=2,
        registers=96,
    ),
)
