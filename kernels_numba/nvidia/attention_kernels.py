"""Kernels of attention and of the writes to its cache, and the sizes that they share with their launches."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec

HEAD_DIMS = (64, 128, 256)
PAGE_TOKENS = 64
COLUMNS = 8
"""Queries of a sequence that share their keys: columns of the MMA."""
APPEND_WARPS = 4
BLOCK_TOKENS = 16
"""Tokens of a page that one warp takes."""
SPLIT_WARPS = PAGE_TOKENS // BLOCK_TOKENS
RING_ENTRIES = 3
COMBINE_WARPS = 8
COMBINE_SHARED_BYTES = COMBINE_WARPS * (512 + 64)
TILE_ROWS = 64
"""Queries of one block, where a sequence brings several tokens."""
TILE_WARPS = TILE_ROWS // 16
ROWS_HEAD_DIM = 256


def split_shared_bytes(head_dim: int) -> int:
    """A ring of blocks of keys and of values for every warp."""
    return SPLIT_WARPS * RING_ENTRIES * BLOCK_TOKENS * head_dim * 2


def rows_shared_bytes(head_dim: int) -> int:
    """The queries, and a page of keys and of values."""
    return (TILE_ROWS + 2 * PAGE_TOKENS) * head_dim * 2


def rows_combine_shared_bytes(head_dim: int) -> int:
    return COMBINE_WARPS * (4 * head_dim + 8)


def _of(head_dim: int) -> tuple[KernelSpec, ...]:
    return (
        KernelSpec(
            f"append_kv_{head_dim}",
            "append",
            "make",
            (head_dim,),
            "l" * 8 + "i" * 5 + "lf",
            threads=32 * APPEND_WARPS,
            min_blocks=4,
            registers=72,
        ),
        KernelSpec(
            f"attention_split_{head_dim}",
            "attention_split",
            "make",
            (head_dim,),
            "l" * 7 + "i" * 4 + "f",
            threads=32 * SPLIT_WARPS,
            min_blocks=2,
            registers={64: 128, 128: 160, 256: 208}[head_dim],
        ),
        KernelSpec(
            f"attention_combine_{head_dim}",
            "attention_combine",
            "make",
            (head_dim,),
            "l" * 5 + "i" * 2 + "f",
            threads=32 * COMBINE_WARPS,
            min_blocks=2,
            registers=96,
        ),
    )


KERNELS = (
    *(spec for head_dim in HEAD_DIMS for spec in _of(head_dim)),
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
