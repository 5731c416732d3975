"""Kernels of norms and gates. Wide rows and few of them want many threads each, many rows small blocks."""

from __future__ import annotations

from kernels_numba.nvidia.kernel import KernelSpec

VECTOR = 8
"""Numbers that a thread takes at once."""
NORM_THREADS = (256, 640)
SILU_THREADS = 256
SUMS_BYTES = 128
"""Shared memory of the sums per warp, before the row."""
_NORM = "l" * 5 + "i" * 3 + "f"

KERNELS = (
    *(
        KernelSpec(f"{name}_{threads}", "norms", "make", (add,), _NORM, threads, 1, registers=64)
        for name, add in (("rms_norm", False), ("add_rms_norm", True))
        for threads in NORM_THREADS
    ),
    KernelSpec("silu_mul", "gates", "make", (), "llii", SILU_THREADS, min_blocks=1, registers=40),
)


def norm_shared_bytes(width: int) -> int:
    """The sums, and a row in bfloat16."""
    return SUMS_BYTES + 2 * width
