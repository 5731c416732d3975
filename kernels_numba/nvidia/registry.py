"""Every CUDA kernel. A family declares its own in ``<family>_kernels.py``."""

from __future__ import annotations

from kernels_numba.nvidia import (
    append_kernels,
    attention_decode_kernels,
    attention_fp4_kernels,
    attention_kernels,
    gated_delta_kernels,
    linear_block_kernels,
    linear_fp4_kernels,
    linear_kernels,
    moe_kernels,
    norms_kernels,
)
from kernels_numba.nvidia.kernel import KernelSpec

STREAM_READ = KernelSpec("stream_read", "stream_read", "make", (), "lli", threads=512, min_blocks=2, registers=40)

KERNELS: tuple[KernelSpec, ...] = (
    STREAM_READ,
    *linear_kernels.KERNELS,
    *linear_block_kernels.KERNELS,
    *linear_fp4_kernels.KERNELS,
    *norms_kernels.KERNELS,
    *append_kernels.KERNELS,
    *attention_kernels.KERNELS,
    *attention_decode_kernels.KERNELS,
    *attention_fp4_kernels.KERNELS,
    *gated_delta_kernels.KERNELS,
    *moe_kernels.KERNELS,
)

BY_NAME = {spec.name: spec for spec in KERNELS}
