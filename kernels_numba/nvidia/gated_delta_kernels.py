"""Kernels of the gated delta rule."""

from __future__ import annotations

from kernels_numba.nvidia.gated_delta_layout import STEP_SPLITS, STEP_WARPS
from kernels_numba.nvidia.kernel import KernelSpec

_STEP = "l" * 12 + "i" * 7 + "f"

KERNELS = tuple(
    KernelSpec(
        f"gated_delta_step_{splits}", "gated_delta_step", "make", (splits,), _STEP, 32 * STEP_WARPS, 2, registers=128
    )
    for splits in STEP_SPLITS
)
