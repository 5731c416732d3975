"""The kernels of what lies between two mixers."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_block_layout import DEPTHS, WARPS

BLOCK_COLUMNS = tuple(DEPTHS)
"""Rows of activations that there is a kernel for; fewer take the next one."""
BLOCK_ARCHS = ("sm_90",)
"""Targets with the shared memory for it and launches that overlap, without spills."""


def block_name(columns: int) -> str:
    return f"dense_block_m{columns}"


KERNELS = tuple(
    KernelSpec(
        block_name(columns),
        "linear_block",
        "make",
        (columns, WARPS),
        "l" * 21 + "i" * 12 + "f",
        32 * (WARPS + 1),
        1,
        registers=96,
        archs=BLOCK_ARCHS,
    )
    for columns in BLOCK_COLUMNS
)
