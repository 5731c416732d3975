"""What the launches of attention kernels have in common."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from kernels_numba.kv.codec import BF16
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_kernels import HEAD_DIMS
from kernels_numba.nvidia.launch import device_of
from kernels_numba.shapes import AttentionShape

ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""
PROGRAMMATIC = True
"""Whether a kernel may be put in place while the one before it still runs."""


@lru_cache
def resident_blocks(device_index: int, name: str, shared_bytes: int) -> int:
    """How many blocks of a kernel run at once."""
    device = device_of(torch.device("cuda", device_index))
    return device.multiprocessors * device.kernel(name).blocks_per_multiprocessor(shared_bytes)


def fits(projected: Tensor, kv: PagedKv, shape: AttentionShape) -> bool:
    return (
        projected.dtype == torch.bfloat16
        and kv.layout.codec.key == kv.layout.codec.value == BF16
        and shape.head_dim in HEAD_DIMS
        and shape.heads % shape.kv_heads == 0
        and kv.pages.is_contiguous()
        and projected.stride(1) == 1
        and projected.stride(0) % 8 == 0
        and projected.data_ptr() % 16 == 0
    )


def integers(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.is_cuda and tensor.stride(-1) == 1
