"""Kernels of the gated delta rule."""

from __future__ import annotations

from kernels_numba.nvidia.gated_delta_layout import STEP_WARPS
from kernels_numba.nvidia.kernel import KernelSpec

_STEP = "l" * 12 + "i" * 7 + "f"

KERNELS = (
    *(
        KernelSpec(
            f"gated_delta_step_{splits}", "gated_delta_step", "make", (splits,), _STEP, 32 * warps, 16 // warps, 128
        )
        for splits, warps in STEP_WARPS.items()
    ),
    KernelSpec("gated_delta_conv", "gated_delta_conv", "make", (), "l" * 9 + "i" * 6, 128, 4, registers=128),
    KernelSpec("gated_delta_chunk", "gated_delta_chunk", "make", (), "l" * 6 + "iii", 128, 3, registers=168),
    KernelSpec("gated_delta_scan", "gated_delta_scan", "make", (), "l" * 6 + "iiii", 256, 1, registers=255),
    KernelSpec("gated_delta_out", "gated_delta_out", "make", (), "l" * 6 + "iiiiiif", 256, 4, registers=64),
)
