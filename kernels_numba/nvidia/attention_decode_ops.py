"""Decode attention by CUDA kernels; torch takes what they do not: other types, sizes and layouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_decode_kernels import COLUMNS, COMBINE_SHARED_BYTES, KERNELS, split_shared_bytes
from kernels_numba.nvidia.attention_kernels import HEAD_DIMS
from kernels_numba.nvidia.attention_launch import PROGRAMMATIC, ROUNDING, fits, integers, resident_blocks
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops import attention

MOST_SEQUENCES = 4096


def attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    sequences = len(context_lengths)
    if (
        not fits(projected, kv, shape)
        or query.shape[0] != sequences
        or not query.is_contiguous()
        or shape.heads > COLUMNS * shape.kv_heads
        or not integers(page_table, torch.int32)
        or not integers(context_lengths, torch.int64)
        or sequences > MOST_SEQUENCES
    ):
        return attention.attention_decode(query, projected, kv, layer, page_table, context_lengths, shape)
    out = torch.empty((sequences, shape.query_width), dtype=query.dtype, device=query.device)
    if not sequences:
        return out
    device = device_of(query.device)
    shared_bytes = split_shared_bytes(shape.head_dim)
    resident = resident_blocks(device.index, f"attention_split_{shape.head_dim}", shared_bytes)
    slots = split_slots(resident // shape.kv_heads, sequences)
    blocks = slots * shape.kv_heads
    # partial outputs, their maxima and sums, and the slots of each sequence
    sizes = (4 * COLUMNS * shape.head_dim * blocks, 8 * COLUMNS * blocks, 8 * sequences)
    scratch = torch.empty(sum(sizes), dtype=torch.uint8, device=query.device)
    partial = scratch.data_ptr()
    statistics = partial + sizes[0]
    plan = statistics + sizes[1]
    group, exponent = shape.heads // shape.kv_heads, shape.softmax_scale * math.log2(math.e)
    device.kernel(f"attention_split_{shape.head_dim}")(
        (slots, shape.kv_heads, 1),
        query.data_ptr(),
        kv.pages.data_ptr() + kv.layout.layer_bytes * layer,
        page_table.data_ptr(),
        context_lengths.data_ptr(),
        partial,
        statistics,
        plan,
        sequences,
        page_table.stride(0),
        kv.layout.page_bytes,
        group,
        exponent,
        shared_bytes=shared_bytes,
        programmatic=PROGRAMMATIC,
    )
    device.kernel(f"attention_combine_{shape.head_dim}")(
        (shape.head_dim // 16, shape.kv_heads, sequences),
        partial,
        statistics,
        plan,
        projected.data_ptr() + 2 * shape.query_width,
        out.data_ptr(),
        2 * projected.stride(0),
        group,
        exponent,
        shared_bytes=COMBINE_SHARED_BYTES,
        programmatic=PROGRAMMATIC,
    )
    return out


def split_slots(resident: int, sequences: int) -> int:
    """Blocks per kv head: what fills the device once, or a multiple of that which has two for every sequence.

    Independent of the contexts, which only the kernel knows.
    """
    resident = max(resident, 1)
    return resident * -(-2 * sequences // resident)


def _check(device: torch.device) -> None:
    """Against the reference in float64, for every size of head."""
    for head_dim in HEAD_DIMS:
        _check_shape(device, AttentionShape(heads=6, kv_heads=2, head_dim=head_dim, rotary_dim=head_dim // 4))


def _check_shape(device: torch.device, shape: AttentionShape) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16()

    lengths, table = torch.tensor([1, 331, 64]), torch.tensor([[3] * 6, [8, 2, 5, 1, 7, 4], [6] * 6]).int()
    layout = KvLayout(KV_CODECS["bf16"], 2, shape.kv_heads, shape.head_dim)
    kv, projected = PagedKv.zeros(layout, 9), normal(3, shape.projected_width)
    kv.plain.copy_(normal(*kv.plain.shape))
    query, there = normal(3, shape.heads, shape.head_dim), PagedKv(kv.pages.to(device), layout)
    out = attention_decode(
        query.to(device), projected.to(device), there, 1, table.to(device), lengths.to(device), shape
    )
    expected = reference.attention_decode(query.double(), projected.double(), kv, 1, table, lengths, shape)
    assert_close("attention_decode", out, expected, ROUNDING)


GROUP = OpGroup(
    "attention_decode", tuple(spec.name for spec in KERNELS), {"attention_decode": attention_decode}, _check
)
