"""Kernels of decode attention, and the sizes that they share with their launches."""

from __future__ import annotations

from kernels_numba.nvidia.attention_decode_plan import PAGED_WARPS, PagedPlan
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
            "l" * 6 + "i" * 4 + "f",
            threads=32 * SPLIT_WARPS,
            min_blocks=2,
            registers={64: 128, 128: 160, 256: 208}[head_dim],
        ),
        KernelSpec(
            f"attention_combine_{head_dim}",
            "attention_combine",
            "make",
            (head_dim,),
            "l" * 5 + "i" * 9 + "f",
            threads=32 * COMBINE_WARPS,
            min_blocks=2,
            registers=128,
        ),
    )


PAGED: dict[str, tuple[PagedPlan, ...]] = {
    "nvfp4": (PagedPlan("nvfp4", 1, 2, 3), PagedPlan("nvfp4", 3, 2, 3), PagedPlan("nvfp4", 6, 1, 3)),
    "fp8": tuple(PagedPlan("fp8", tiles, 1, entries) for tiles, entries in ((1, 4), (3, 3), (6, 3))),
    "int8": tuple(PagedPlan("int8", tiles, 1, entries) for tiles, entries in ((1, 4), (3, 3), (6, 3))),
    "k8v4": tuple(PagedPlan("k8v4", tiles, 1, entries) for tiles, entries in ((1, 4), (3, 3), (6, 3))),
    "bf16": tuple(PagedPlan("bf16", tiles, 1, 2) for tiles in (3, 6)),
}
"""By codec, from few columns to many. The ring of one block leaves room for two where a multiprocessor has 228 KiB."""
_BLOCKS = {("nvfp4", 1): 3, ("fp8", 1): 3, ("int8", 1): 3, ("k8v4", 1): 3}


def paged_name(plan: PagedPlan) -> str:
    return f"attention_paged_{plan.codec}_{plan.tiles}"


def paged_spec(name: str, plan: PagedPlan, min_blocks: int) -> KernelSpec:
    return KernelSpec(
        name,
        "attention_paged",
        "make",
        (plan.codec, plan.tiles, plan.step_pages, plan.entries),
        "l" * 6 + "i" * 7 + "f",
        threads=32 * PAGED_WARPS,
        min_blocks=min_blocks,
        registers=min(255, 65536 // (32 * PAGED_WARPS * min_blocks) // 8 * 8),
    )


KERNELS = (
    *(spec for head_dim in HEAD_DIMS for spec in _of(head_dim)),
    *(
        paged_spec(paged_name(plan), plan, _BLOCKS.get((plan.codec, plan.tiles), 2))
        for plans in PAGED.values()
        for plan in plans
    ),
)
