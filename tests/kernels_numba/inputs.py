"""Random inputs of the ops, in float64; each implementation gets them in its own type."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import AttentionNorms, AttentionShape, GatedDeltaShape, GatedDeltaWeights

_Weights = TypeVar("_Weights", AttentionNorms, GatedDeltaWeights)


class Random:
    """Normal numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator)


def converted(weights: _Weights, dtype: torch.dtype) -> _Weights:
    """The same weights with all tensors in ``dtype``."""
    tensors = {
        field.name: getattr(weights, field.name).to(dtype)
        for field in fields(weights)
        if isinstance(getattr(weights, field.name), Tensor)
    }
    return replace(weights, **tensors)


@dataclass(frozen=True)
class AttentionCase:
    """Sequences with a cached past on shuffled pages; what lies outside their contexts is NaN."""

    shape: AttentionShape
    norms: AttentionNorms
    kv: Tensor  # [pages, layers, KV, 2 (K, V), PAGE_TOKENS, D]
    page_table: Tensor  # int32 [S, P]
    context_lengths: list[int]
    query: Tensor  # [N, H, D]
    projected: Tensor

    @classmethod
    def random(cls, shape: AttentionShape, context_lengths: list[int], tokens: int, seed: int = 0) -> AttentionCase:
        """``tokens`` rows of queries; two attention layers."""
        random = Random(seed)
        most = -(-max(context_lengths) // PAGE_TOKENS)
        pages = random.permutation(most * len(context_lengths) + 1)[1:].view(len(context_lengths), most)
        kv = torch.full((pages.numel() + 1, 2, shape.kv_heads, 2, PAGE_TOKENS, shape.head_dim), torch.nan).double()
        for row, context in zip(pages, context_lengths, strict=True):
            for position in range(context):
                page, offset = row[position // PAGE_TOKENS], position % PAGE_TOKENS
                kv[page, :, :, :, offset] = random.normal(2, shape.kv_heads, 2, shape.head_dim)
        norms = AttentionNorms(1 + 0.2 * random.normal(shape.head_dim), 1 + 0.2 * random.normal(shape.head_dim), 1e-6)
        query = random.normal(tokens, shape.heads, shape.head_dim)
        projected = random.normal(tokens, shape.projected_width)
        return cls(shape, norms, kv, pages.int(), context_lengths, query, projected)

    def empty(self, codec: str) -> PagedKv:
        """As many pages as ``kv`` has, all zero."""
        layers, kv_heads = self.kv.shape[1:3]
        return PagedKv.zeros(KvLayout(KV_CODECS[codec], layers, kv_heads, self.shape.head_dim), self.kv.shape[0])

    def paged(self, codec: str) -> PagedKv:
        """``kv`` as it is stored by a plain codec."""
        paged = self.empty(codec)
        paged.plain.copy_(self.kv)
        return paged


@dataclass(frozen=True)
class GatedDeltaCase:
    """Rows of projections and the states of six slots in two layers."""

    shape: GatedDeltaShape
    weights: GatedDeltaWeights
    conv: Tensor
    recurrent: Tensor
    projected: Tensor

    @classmethod
    def random(cls, shape: GatedDeltaShape, tokens: int, seed: int = 0) -> GatedDeltaCase:
        random = Random(seed)
        weights = GatedDeltaWeights(
            conv=0.5 * random.normal(shape.conv_kernel, shape.conv_channels),
            decay_rate=-random.normal(shape.value_heads).exp(),
            dt_bias=random.normal(shape.value_heads),
            norm=1 + 0.2 * random.normal(shape.value_dim),
            eps=1e-6,
        )
        return cls(
            shape,
            weights,
            conv=random.normal(6, 2, shape.conv_channels, shape.conv_kernel - 1),
            recurrent=random.normal(6, 2, shape.value_heads, shape.key_dim, shape.value_dim),
            projected=random.normal(tokens, shape.projected_width),
        )
