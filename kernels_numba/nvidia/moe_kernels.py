"""The kernels of mixtures of experts: routing, products with the chosen experts, and their sum."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear_formats import FORMATS, PLACE_BYTES, StreamFormat

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


KERNELS = (
    KernelSpec("moe_route", "moe_route", "make", (), "lllllllllliiiiii", ROUTE_THREADS, 1, 40),
    KernelSpec("moe_group", "moe_group", "make", (), "lllliiii", GROUP_THREADS, 1, 40),
    *(
        KernelSpec(
            product_name(part, stream),
            "moe_products",
            "make",
            (stream, part),
            "lllllllliiii",
            32 * WARPS,
            2,
            _REGISTERS,
        )
        for stream in FORMATS
        for part in (UP, DOWN)
    ),
    KernelSpec("moe_combine", "moe_combine", "make", (), "lllllliiii", COMBINE_THREADS, 1, 48),
)
