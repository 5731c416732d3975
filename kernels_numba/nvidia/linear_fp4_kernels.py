"""The kernels that make operands of block-scaled FP4 products, for the targets whose tensor cores take them."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS

ARCHS = ("sm_100a", "sm_120a")
BLOCK = 16
"""Columns that share a scale."""

KERNELS = (
    KernelSpec("fp4_weights", "linear_fp4", "make_weights", (), "llliiii", 32 * DEQUANT_STEPS, 1, 64, archs=ARCHS),
    KernelSpec(
        "fp4_activations", "linear_fp4", "make_activations", (), "lllliii", CONVERTING_THREADS, 1, 64, archs=ARCHS
    ),
)
