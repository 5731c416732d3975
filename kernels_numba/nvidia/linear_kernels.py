"""The kernels of products with quantised weights."""

from __future__ import annotations

from collections.abc import Iterable

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_formats import FORMATS, FURTHER_FORMATS, NVFP4, USUAL_FORMATS, StreamFormat

GEMV_COLUMNS = (4, 8, 16)
"""Rows of activations that there is a kernel for; fewer rows take the next one.

There is none for one row: it takes no less time than that of four, and its blocks left room for several of what is
launched behind them with programmatic overlap, which then filled some multiprocessors and left others idle (a decode
round of a 27B on an H200: 9.2 ms with it, 6.1 ms without).
"""
FUSED_COLUMNS = (4,)
"""Those that convert the activations themselves."""
WARPS, SMALL_WARPS = 16, 8
"""Of a block: with their rings they keep some 70 KB under way on a multiprocessor, or half of that where a
multiprocessor has little shared memory, and with it a third of the bandwidth."""
LARGE_ARCHS, SMALL_ARCHS = ("sm_80", "sm_90", "sm_100a"), ("sm_86", "sm_89", "sm_120a")
CONVERTING_THREADS = 256
DEQUANT_STEPS = 8
"""Steps that a block decodes, a warp each."""
_TWO_BLOCKS_REGISTERS, _ONE_BLOCK_REGISTERS = 64, 104
"""Budgets. With 4-bit weights and few rows a multiprocessor has the shared memory for two blocks, see PDL."""


def gemv_name(stream: str, columns: int, warps: int) -> str:
    return f"gemv_{stream}_m{columns}_w{warps}"


def _gemv(stream: str, columns: int, warps: int) -> KernelSpec:
    two_blocks = columns <= 8 and FORMATS[stream].step_bytes <= NVFP4.step_bytes and warps == WARPS
    return KernelSpec(
        name=gemv_name(stream, columns, warps),
        module="linear_gemv",
        generator="make",
        arguments=(stream, columns, warps, columns in FUSED_COLUMNS),
        signature="l" * 7 + "i" * 6,
        threads=32 * warps,
        min_blocks=2 if two_blocks else 1,
        registers=_TWO_BLOCKS_REGISTERS if two_blocks else _ONE_BLOCK_REGISTERS,
        archs=LARGE_ARCHS if warps == WARPS else SMALL_ARCHS,
    )


def _of(formats: Iterable[StreamFormat]) -> tuple[KernelSpec, ...]:
    names = [stream.name for stream in formats]
    return (
        *(
            _gemv(stream, columns, warps)
            for stream in names
            for warps in (WARPS, SMALL_WARPS)
            for columns in GEMV_COLUMNS
        ),
        *(
            KernelSpec(f"dequant_{stream}", "linear_dequant", "make", (stream,), "llliiii", 32 * DEQUANT_STEPS, 1, 64)
            for stream in names
        ),
    )


USUAL_KERNELS = (
    *_of(USUAL_FORMATS),
    *(
        KernelSpec(
            f"activations_m{columns}", "linear_activations", "make", (columns,), "lllii", CONVERTING_THREADS, 1, 40
        )
        for columns in GEMV_COLUMNS
        if columns not in FUSED_COLUMNS
    ),
)
FURTHER_KERNELS = _of(FURTHER_FORMATS)
KERNELS = (*USUAL_KERNELS, *FURTHER_KERNELS)
