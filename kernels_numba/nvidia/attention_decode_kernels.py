"""Kernels of decode attention, and the sizes that they share with their launches."""

from __future__ import annotations

from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS, HEAD_DIMS, PAGE_TOKENS
from kernels_numba.nvidia.kernel import KernelSpec

COLUMNS = 8
"""Queries of a sequence that share their keys: columns of the MMA."""
BLOCK_TOKENS = 16
"""Tokens of a page that one warp takes."""
SPLIT_WARPS = PAGE_TOKENS // BLOCK_TOKENS
RING_ENTRIES = 3
COMBINE_SHARED_BYTES = COMBINE_WARPS * (512 + 64)


def split_shared_bytes(head_dim: int) -> int:
    """A ring of blocks of keys and of values for every warp."""
    return SPLIT_WARPS * RING_ENTRIES * BLOCK_TOKENS * head_dim * 2


def _of(head_dim: int) -> tuple[KernelSpec, ...]:
    return (
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


KERNELS = tuple(spec for head_dim in HEAD_DIMS for spec in _of(head_dim))
