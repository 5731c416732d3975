"""Decode attention over NVFP4 whose scores FP4 tensor cores compute: its kernels, and on which devices."""

from __future__ import annotations

from functools import lru_cache

from kernels_numba.nvidia.attention_codec_fp4 import Fp4Plan
from kernels_numba.nvidia.attention_decode_kernels import served_plans
from kernels_numba.nvidia.attention_decode_plan import PAGED_WARPS, PagedPlan
from kernels_numba.nvidia.kernel import KernelSpec

ARCHS = ("sm_120a",)
PLANS = (Fp4Plan("nvfp4", 1, 1, 4), Fp4Plan("nvfp4", 3, 1, 4), Fp4Plan("nvfp4", 6, 1, 3))
"""Two blocks of each fit into the 100 KiB of shared memory of a multiprocessor."""


def fp4_name(plan: Fp4Plan) -> str:
    return f"attention_fp4_{plan.tiles}x{plan.step_pages}"


KERNELS = tuple(
    KernelSpec(
        fp4_name(plan),
        "attention_paged_fp4",
        "make",
        (plan.tiles, plan.step_pages, plan.entries),
        "l" * 6 + "i" * 7 + "f",
        threads=32 * PAGED_WARPS,
        min_blocks=2,
        registers={1: 128, 3: 192, 6: 255}[plan.tiles],
        archs=ARCHS,
    )
    for plan in PLANS
)


@lru_cache
def plans_with_fp4(codec: str, arch: str) -> tuple[PagedPlan, ...]:
    """As ``served_plans``, where FP4 scores serve what they can."""
    return PLANS if codec == "nvfp4" and arch in ARCHS else served_plans(codec, arch)
