"""Gated attention over paged keys and values of any codec."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.encode import turned
from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import AttentionNorms, AttentionShape
from kernels_numba.torch_ops.dense import rms_norm


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
    tokens = projected.shape[0]
    query, _, key, value = torch.split(
        projected, [shape.query_width, shape.query_width, shape.kv_width, shape.kv_width], 1
    )
    query = rms_norm(query.reshape(tokens, shape.heads, shape.head_dim), norms.query, norms.eps)
    key = rms_norm(key.reshape(tokens, shape.kv_heads, shape.head_dim), norms.key, norms.eps)
    value = value.reshape(tokens, shape.kv_heads, shape.head_dim)
    store(kv, layer, slot_mapping, _rotated(key, cos, sin), value)
    return turned(kv.layout.codec, _rotated(query, cos, sin))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype), rest], -1)


def attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """One sequence after the other: what lies in the pages behind a context is never touched."""
    rows = query.shape[0] // max(1, len(context_lengths))
    outputs = [query.new_empty(0, shape.query_width)]
    for s, context in enumerate(context_lengths.tolist()):
        own = slice(s * rows, (s + 1) * rows)
        outputs.append(attention_prefill(query[own], projected[own], kv, layer, page_table[s], context, shape))
    return torch.cat(outputs)


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
    cached = load(kv, layer, pages[: -(-context_length // PAGE_TOKENS)], query.dtype)
    # [pages, KV, PAGE_TOKENS, D] -> [KV, context, D]
    key, value = (part.transpose(0, 1).flatten(1, 2)[:, :context_length] for part in cached)
    group = shape.heads // shape.kv_heads
    mask = None
    if tokens > 1:
        positions = torch.arange(context_length, device=query.device)
        mask = positions <= positions[context_length - tokens :, None]
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.repeat_interleave(group, 0)[None],
        value.repeat_interleave(group, 0)[None],
        attn_mask=mask,
        scale=shape.softmax_scale,
    )
    gate = torch.sigmoid(projected[:, shape.gate_columns])
    return attended[0].transpose(0, 1).flatten(1) * gate
