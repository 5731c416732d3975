"""Kernels of decode attention, and the sizes that they share with their launches."""

from __future__ import annotations

from functools import lru_cache

from kernels_numba.nvidia.attention_decode_plan import PAGED_WARPS, PagedPlan
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS, HEAD_DIMS, PAGE_TOKENS
from kernels_numba.nvidia.kernel import ARCHS, KernelSpec

WARPGROUP_TARGET = "sm_90a"
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


PAGED = (
    PagedPlan("nvfp4", 1, 2, 3),
    PagedPlan("nvfp4", 3, 2, 3),
    PagedPlan("nvfp4", 3, 1, 4),
    PagedPlan("nvfp4", 6, 1, 3),
    PagedPlan("nvfp4", 6, 1, 3, warpgroup=True),
    *(PagedPlan(codec, 1, 1, 4) for codec in ("fp8", "int8", "k8v4")),
    *(PagedPlan(codec, tiles, 1, 3) for codec in ("fp8", "int8", "k8v4") for tiles in (3, 6)),
    *(PagedPlan("bf16", tiles, 1, 2) for tiles in (3, 6)),
)
"""The rings of two blocks fit into a multiprocessor's 228 KiB, that of one into 99 KiB."""
_WIDE_ARCHS = ("sm_90", "sm_100a", "sm_120a")
"""Targets whose assemblers find registers for 6 tiles. Elsewhere rows take turns."""


def paged_name(plan: PagedPlan) -> str:
    return f"attention_paged_{plan.codec}_{plan.tiles}x{plan.step_pages}{'_warpgroup' * plan.warpgroup}"


def _archs(plan: PagedPlan) -> tuple[str, ...]:
    if plan.warpgroup:
        return (WARPGROUP_TARGET,)
    if plan.tiles > 3:  # sm_90 has the products of a warpgroup
        return tuple(arch for arch in _WIDE_ARCHS if plan.codec != "nvfp4" or arch != "sm_90")
    if plan.codec == "nvfp4" and plan.tiles == 3:  # sm_80's assembler finds no registers for two pages at once
        return ARCHS[:1] if plan.step_pages == 1 else ARCHS[1:]
    return ARCHS


def paged_spec(name: str, plan: PagedPlan, min_blocks: int) -> KernelSpec:
    return KernelSpec(
        name,
        "attention_paged",
        "make",
        (plan.codec, plan.tiles, plan.step_pages, plan.entries, plan.warpgroup),
        "l" * 6 + "i" * 7 + "f",
        threads=32 * PAGED_WARPS,
        min_blocks=min_blocks,
        registers=min(255, 65536 // (32 * PAGED_WARPS * min_blocks) // 8 * 8),
        archs=_archs(plan),
    )


_PAGED_SPECS = {plan: paged_spec(paged_name(plan), plan, 3 if plan.tiles == 1 else 2) for plan in PAGED}


@lru_cache
def served_plans(codec: str, arch: str) -> tuple[PagedPlan, ...]:
    """The kernels of a codec on devices of ``arch``, from few columns to many."""
    own = [plan for plan, spec in _PAGED_SPECS.items() if plan.codec == codec and spec.target_on(arch)]
    plans = {plan.tiles: plan for plan in sorted(own, key=lambda plan: plan.warpgroup)}
    return tuple(plans[tiles] for tiles in sorted(plans))


KERNELS = (*(spec for head_dim in HEAD_DIMS for spec in _of(head_dim)), *_PAGED_SPECS.values())
