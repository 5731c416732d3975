"""The kernels of products with quantised weights."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_formats import FORMATS, WARPS

GEMV_COLUMNS = (1, 4, 8, 16)
"""Rows of activations that there is a kernel for; fewer rows take the next one."""
FUSED_COLUMNS = (1, 4)
"""Those that convert the activations themselves."""
TWO_BLOCKS_REGISTERS, ONE_BLOCK_REGISTERS = 64, 104
"""Budgets. With 4-bit weights and few rows a multiprocessor has the shared memory for two blocks, see PDL."""


CONVERTING_THREADS = 256
DEQUANT_STEPS = 8
"""Steps that a block decodes, a warp each."""


def gemv_name(stream: str, columns: int) -> str:
    return f"gemv_{stream}_m{columns}"


def _gemv(stream: str, columns: int) -> KernelSpec:
    two_blocks = columns <= 8 and FORMATS[stream].code_bytes <= 1024
    return KernelSpec(
        name=gemv_name(stream, columns),
        module="linear_gemv",
        generator="make",
        arguments=(stream, columns, columns in FUSED_COLUMNS),
        signature="llllllliiii",
        threads=32 * WARPS,
        min_blocks=2 if two_blocks else 1,
        registers=TWO_BLOCKS_REGISTERS if two_blocks else ONE_BLOCK_REGISTERS,
    )


GEMV_KERNELS = {stream: tuple(_gemv(stream, columns) for columns in GEMV_COLUMNS) for stream in FORMATS}
ACTIVATION_KERNELS = tuple(
    KernelSpec(f"activations_m{columns}", "linear_activations", "make", (columns,), "lllii", CONVERTING_THREADS, 1, 40)
    for columns in GEMV_COLUMNS
    if columns not in FUSED_COLUMNS
)
DEQUANT_KERNELS = {
    stream: KernelSpec(f"dequant_{stream}", "linear_dequant", "make", (stream,), "llliiii", 32 * DEQUANT_STEPS, 1, 64)
    for stream in FORMATS
}
KERNELS = (
    *(spec for specs in GEMV_KERNELS.values() for spec in specs),
    *ACTIVATION_KERNELS,
    *DEQUANT_KERNELS.values(),
)
