"""The kernels of mixtures of experts: routing, products with the chosen experts, and their sum."""

from __future__ import annotations

from collections.abc import Iterable

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_formats import FURTHER_FORMATS, PLACE_BYTES, USUAL_FORMATS, StreamFormat

ROUTE_THREADS, GROUP_THREADS, COMBINE_THREADS = 128, 1024, 128
WARPS = 8
"""Of a block of the products."""
COLUMNS = 8
"""Rows of activations that one item multiplies: the columns of a tensor core's product."""
MOST_CHOSEN = 32
"""Experts of a token: a lane each."""
MOST_EXPERTS = 1024
UP, DOWN = "up", "down"
"""The two products: with a stack of ``gate | up`` rows, and with what takes their result back."""
_REGISTERS = 128


def shared_bytes(weights: StreamFormat) -> int:
    """Dynamic shared memory of the products: the rings, and where sums meet."""
    return WARPS * (weights.depth * weights.step_bytes + PLACE_BYTES)


def product_name(part: str, stream: str) -> str:
    return f"moe_{part}_{stream}"


def _of(formats: Iterable[StreamFormat]) -> tuple[KernelSpec, ...]:
    return tuple(
        KernelSpec(
            product_name(part, stream.name),
            "moe_products",
            "make",
            (stream.name, part),
            "lllllllliiii",
            32 * WARPS,
            2,
            _REGISTERS,
        )
        for stream in formats
        for part in (UP, DOWN)
    )


USUAL_KERNELS = (
    KernelSpec("moe_route", "moe_route", "make", (), "lllllllllliiiiii", ROUTE_THREADS, 1, 40),
    KernelSpec("moe_group", "moe_group", "make", (), "lllliiii", GROUP_THREADS, 1, 40),
    *_of(USUAL_FORMATS),
    KernelSpec("moe_combine", "moe_combine", "make", (), "lllllliiii", COMBINE_THREADS, 1, 48),
)
FURTHER_KERNELS = _of(FURTHER_FORMATS)
KERNELS = (*USUAL_KERNELS, *FURTHER_KERNELS)
