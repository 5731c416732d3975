"""Attention and cache writes by CUDA kernels; torch takes what they do not: other types, sizes and layouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.append_ops import append_kv
from kernels_numba.nvidia.attention_kernels import (
    KERNELS,
    PAGE_TOKENS,
    ROWS_HEAD_DIM,
    TILE_ROWS,
    rows_combine_shared_bytes,
    rows_shared_bytes,
)
from kernels_numba.nvidia.attention_launch import PROGRAMMATIC, ROUNDING, fits, integers, resident_blocks
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import AttentionNorms, AttentionShape
from kernels_numba.torch_ops import attention


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
        not fits(projected, kv, shape)
        or not query.is_contiguous()
        or shape.head_dim != ROWS_HEAD_DIM
        or not integers(pages, torch.int32)
    ):
        return attention.attention_prefill(query, projected, kv, layer, pages, context_length, shape)
    out = torch.empty((tokens, shape.query_width), dtype=query.dtype, device=query.device)
    if not tokens:
        return out
    device = device_of(query.device)
    shared_bytes = rows_shared_bytes(shape.head_dim)
    resident = resident_blocks(device.index, "attention_rows", shared_bytes)
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


def _check(device: torch.device) -> None:
    """Outputs against the reference in float64."""
    _check_shape(device, AttentionShape(heads=6, kv_heads=2, head_dim=ROWS_HEAD_DIM, rotary_dim=64))


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
    exact = PagedKv(there.pages.cpu(), layout)
    tokens, context = 11, 331
    query, projected = normal(tokens, shape.heads, shape.head_dim), normal(tokens, shape.projected_width)
    for pages in (table[1], table[1, :1]):
        context = min(context, PAGE_TOKENS * len(pages))
        out = attention_prefill(query.to(device), projected.to(device), there, 1, pages.to(device), context, shape)
        expected = reference.attention_prefill(query.double(), projected.double(), exact, 1, pages, context, shape)
        assert_close("attention_prefill", out, expected, ROUNDING)


GROUP = OpGroup(
    "attention_prefill",
    tuple(spec.name for spec in KERNELS),
    {"attention_prefill": attention_prefill},
    _check,
)
