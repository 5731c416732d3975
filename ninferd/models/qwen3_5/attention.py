"""Gated softmax attention with grouped heads, query and key norms and partial rope."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.kv.paged import PagedKv
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionNorms, AttentionShape, PackedLinear
from ninferd.models.qwen3_5.groups import DecodeGroup, PrefillSpan, SequenceGroups


@dataclass(frozen=True)
class AttentionLayer:
    """Weights of one attention layer."""

    in_proj: PackedLinear  # query | gate | key | value, see AttentionShape
    out_proj: PackedLinear
    norms: AttentionNorms
    kv_layer: int  # index among the attention layers


@dataclass(frozen=True)
class AttentionInputs:
    """What all attention layers of a step share."""

    cos: torch.Tensor  # float32 [N, rotary_dim / 2]
    sin: torch.Tensor
    slot_mapping: torch.Tensor  # int64 [N]
    groups: SequenceGroups
    kv: PagedKv  # of all layers


def gated_attention(
    ops: OpTable, shape: AttentionShape, layer: AttentionLayer, projected: torch.Tensor, inputs: AttentionInputs
) -> torch.Tensor:
    """Mix what ``in_proj`` yields over each sequence's past, for ``out_proj``; appends keys and values to the cache."""
    kv, index = inputs.kv, layer.kv_layer
    query = ops.append_kv(projected, layer.norms, inputs.cos, inputs.sin, kv, index, inputs.slot_mapping, shape)

    def decode(group: DecodeGroup) -> torch.Tensor:
        return ops.attention_decode(
            group.select(query), group.select(projected), kv, index, group.page_table, group.context_lengths, shape
        )

    def prefill(span: PrefillSpan) -> torch.Tensor:
        rows = span.rows
        return ops.attention_prefill(query[rows], projected[rows], kv, index, span.pages, span.context_length, shape)

    return inputs.groups.apply(projected, shape.query_width, decode, prefill)
