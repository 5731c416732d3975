"""Attention and cache writes by CUDA kernels; torch takes what they do not: other types, sizes and layouts."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.codec import BF16, KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_kernels import (
    APPEND_WARPS,
    COLUMNS,
    COMBINE_SHARED_BYTES,
    HEAD_DIMS,
    KERNELS,
    PAGE_TOKENS,
    ROWS_HEAD_DIM,
    TILE_ROWS,
    rows_combine_shared_bytes,
    rows_shared_bytes,
    split_shared_bytes,
)
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import AttentionNorms, AttentionShape
from kernels_numba.torch_ops import attention

ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""
MOST_SEQUENCES = 4096
PROGRAMMATIC = True
"""Whether a kernel may be put in place while the one before it still runs."""


def append_kv(
    projected: Tensor,
    norms: AttentionNorms,
    cos: Tensor,
    sin: Tensor,
    kv: PagedKv,
    layer: int,
    slot_mapping: Tensor,
    shape: AttentionShape,
) -> Tensor:
    tokens, half_rotary = cos.shape
    lane_dims = shape.head_dim // 32
    if (
        not _fits(projected, kv, shape)
        or half_rotary % lane_dims
        or not all(t.dtype == torch.float32 and t.is_contiguous() for t in (cos, sin, norms.query, norms.key))
        or not _integers(slot_mapping, torch.int64)
    ):
        return attention.append_kv(projected, norms, cos, sin, kv, layer, slot_mapping, shape)
    query = torch.empty((tokens, shape.heads, shape.head_dim), dtype=projected.dtype, device=projected.device)
    if tokens:
        device_of(projected.device).kernel(f"append_kv_{shape.head_dim}")(
            (tokens, -(-(shape.heads + 2 * shape.kv_heads) // APPEND_WARPS), 1),
            projected.data_ptr(),
            norms.query.data_ptr(),
            norms.key.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            kv.pages.data_ptr(),
            slot_mapping.data_ptr(),
            query.data_ptr(),
            2 * projected.stride(0),
            shape.heads,
            shape.kv_heads,
            half_rotary,
            kv.layout.page_bytes,
            kv.layout.layer_bytes * layer,
            norms.eps,
            programmatic=PROGRAMMATIC,
        )
    return query


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
        not _fits(projected, kv, shape)
        or query.shape[0] != sequences
        or not query.is_contiguous()
        or shape.heads > COLUMNS * shape.kv_heads
        or not _integers(page_table, torch.int32)
        or not _integers(context_lengths, torch.int64)
        or sequences > MOST_SEQUENCES
    ):
        return attention.attention_decode(query, projected, kv, layer, page_table, context_lengths, shape)
    out = torch.empty((sequences, shape.query_width), dtype=query.dtype, device=query.device)
    if not sequences:
        return out
    device = device_of(query.device)
    shared_bytes = split_shared_bytes(shape.head_dim)
    resident = _resident_blocks(device.index, f"attention_split_{shape.head_dim}", shared_bytes)
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


def attention_prefill(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    pages: Tensor,
    context_length: int,
    shape: AttentionShape,
) -> Tensor:
    tokens = query.shape[0]
    if (
        not _fits(projected, kv, shape)
        or not query.is_contiguous()
        or shape.head_dim != ROWS_HEAD_DIM
        or not _integers(pages, torch.int32)
    ):
        return attention.attention_prefill(query, projected, kv, layer, pages, context_length, shape)
    out = torch.empty((tokens, shape.query_width), dtype=query.dtype, device=query.device)
    if not tokens:
        return out
    device = device_of(query.device)
    shared_bytes = rows_shared_bytes(shape.head_dim)
    resident = _resident_blocks(device.index, "attention_rows", shared_bytes)
    group, exponent = shape.heads // shape.kv_heads, shape.softmax_scale * math.log2(math.e)
    rows = tokens * group
    tiles = -(-rows // TILE_ROWS)
    splits, most = row_splits(resident, tiles * shape.kv_heads, -(-context_length // PAGE_TOKENS))
    tile_rows = tiles * TILE_ROWS
    partial_bytes = 4 * shape.head_dim * splits * shape.kv_heads * tile_rows if splits > 1 else 0
    scratch = torch.empty(partial_bytes + partial_bytes // shape.head_dim * 2, dtype=torch.uint8, device=query.device)
    partial, gate = scratch.data_ptr(), projected.data_ptr() + 2 * shape.query_width
    device.kernel("attention_rows")(
        (tiles, shape.kv_heads, splits),
        query.data_ptr(),
        kv.pages.data_ptr() + kv.layout.layer_bytes * layer,
        pages.data_ptr(),
        partial,
        partial + partial_bytes,
        gate,
        out.data_ptr(),
        rows,
        group,
        context_length - tokens,
        context_length,
        kv.layout.page_bytes,
        2 * projected.stride(0),
        most,
        exponent,
        shared_bytes=shared_bytes,
        programmatic=PROGRAMMATIC,
    )
    if splits > 1:
        device.kernel("attention_rows_combine")(
            (rows, shape.kv_heads, 1),
            partial,
            partial + partial_bytes,
            gate,
            out.data_ptr(),
            splits,
            tile_rows,
            group,
            2 * projected.stride(0),
            exponent,
            shared_bytes=rows_combine_shared_bytes(shape.head_dim),
            programmatic=PROGRAMMATIC,
        )
    return out


def row_splits(resident: int, tiles: int, pages: int) -> tuple[int, int]:
    """Splits of a context of ``pages``, and pages of each: as many as the device holds at once beside each other."""
    most = -(-pages // max(1, resident // tiles))
    return -(-pages // most), most


@lru_cache
def _resident_blocks(device_index: int, name: str, shared_bytes: int) -> int:
    """How many blocks of a kernel run at once."""
    device = device_of(torch.device("cuda", device_index))
    return device.multiprocessors * device.kernel(name).blocks_per_multiprocessor(shared_bytes)


def _fits(projected: Tensor, kv: PagedKv, shape: AttentionShape) -> bool:
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


def _integers(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.is_cuda and tensor.stride(-1) == 1


def _check(device: torch.device) -> None:
    """Queries, cache and outputs against the reference in float64, for every size of head."""
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
    norms = AttentionNorms(1 + normal(shape.head_dim).float() / 8, 1 + normal(shape.head_dim).float() / 8, 1e-6)
    angles = 3 * normal(3, shape.rotary_dim // 2).float()
    cos, sin = angles.cos(), angles.sin()
    last = lengths - 1
    slots = table.long().gather(1, (last // PAGE_TOKENS)[:, None])[:, 0] * PAGE_TOKENS + last % PAGE_TOKENS
    there = PagedKv(kv.pages.to(device), layout)
    norms_there = AttentionNorms(norms.query.to(device), norms.key.to(device), norms.eps)
    query = append_kv(
        projected.to(device), norms_there, cos.to(device), sin.to(device), there, 1, slots.to(device), shape
    )
    expected = reference.append_kv(projected.double(), norms, cos.double(), sin.double(), kv, 1, slots, shape)
    assert_close("append_kv", query, expected, ROUNDING)
    assert_close("append_kv", there.plain, kv.plain.double(), ROUNDING)
    out = attention_decode(query, projected.to(device), there, 1, table.to(device), lengths.to(device), shape)
    exact = PagedKv(there.pages.cpu(), layout)
    expected = reference.attention_decode(query.double().cpu(), projected.double(), exact, 1, table, lengths, shape)
    assert_close("attention_decode", out, expected, ROUNDING)
    if shape.head_dim != ROWS_HEAD_DIM:
        return
    tokens, context = 11, 331
    query, projected = normal(tokens, shape.heads, shape.head_dim), normal(tokens, shape.projected_width)
    for pages in (table[1], table[1, :1]):
        context = min(context, PAGE_TOKENS * len(pages))
        out = attention_prefill(query.to(device), projected.to(device), there, 1, pages.to(device), context, shape)
        expected = reference.attention_prefill(query.double(), projected.double(), exact, 1, pages, context, shape)
        assert_close("attention_prefill", out, expected, ROUNDING)


GROUP = OpGroup(
    "attention",
    tuple(spec.name for spec in KERNELS),
    {"append_kv": append_kv, "attention_decode": attention_decode, "attention_prefill": attention_prefill},
    _check,
)
