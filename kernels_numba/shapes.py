"""Sizes and small weights that an op needs beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

L2_EPS = 1e-6
"""Added to the sum of squares when queries and keys of the gated delta rule are normalised."""


class PackedSegment(Protocol):
    """Neighbouring output rows of one format, or a stack of such, in the order that an op table wants."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def __getitem__(self, index: int, /) -> PackedSegment: ...


@dataclass(frozen=True)
class PackedLinear:
    """The weights of one product, or a stack of them: the outputs of its segments, one after the other."""

    segments: tuple[PackedSegment, ...]

    @cached_property
    def outputs(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def __getitem__(self, index: int) -> PackedLinear:
        """One product of a stack."""
        return PackedLinear(tuple(segment[index] for segment in self.segments))


@dataclass(frozen=True)
class AttentionShape:
    """Head layout of a gated attention layer.

    Its fused projection yields per token the columns ``query [H*D] | gate [H*D] | key [KV*D] | value [KV*D]``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def projected_width(self) -> int:
        return 2 * (self.query_width + self.kv_width)

    @property
    def gate_columns(self) -> slice:
        """Columns of the output gate in the fused projection."""
        return slice(self.query_width, 2 * self.query_width)

    @property
    def softmax_scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class AttentionNorms:
    """Weights of the norms over the head dimension, as multiplied (the checkpoint's plus one)."""

    query: torch.Tensor  # float32 [D]
    key: torch.Tensor  # float32 [D]
    eps: float


@dataclass(frozen=True)
class GatedDeltaShape:
    """Head layout of a gated delta rule layer.

    Its fused projection yields per token the columns ``conv input [C] | z [HV*DV] | b [HV] | a [HV]``; the conv
    channels are ``query [HK*DK] | key [HK*DK] | value [HV*DV]``.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_width + self.value_width

    @property
    def projected_width(self) -> int:
        return self.conv_channels + self.value_width + 2 * self.value_heads


@dataclass(frozen=True)
class GatedDeltaWeights:
    """The small weights of a gated delta rule layer; all float32."""

    conv: torch.Tensor  # [kernel, C]; the last row meets the current token
    decay_rate: torch.Tensor  # [HV], -exp(A_log)
    dt_bias: torch.Tensor  # [HV]
    norm: torch.Tensor  # [DV]
    eps: float


@dataclass(frozen=True)
class GatedDeltaPending:
    """Rows that a round of the gated delta rule has computed and not yet taken into the states.

    Row t of ``R`` is what turns the state before the rows, S, into that after it: with its log decays summed up to row
    t, G, keys k and deltas d, the state after ``n`` rows is e^{G_n-1} S + sum over t < n of e^{G_n-1 - G_t} k_t d_tᵀ.
    """

    inputs: torch.Tensor  # [slots, layers, R, C], of the conv, in the type of its state
    keys: torch.Tensor  # float32 [slots, layers, R, HK, DK], normalised
    deltas: torch.Tensor  # float32 [slots, layers, R, HV, DV]
    log_decays: torch.Tensor  # float32 [slots, layers, R, HV], summed

    @property
    def rows(self) -> int:
        """Most rows that may be pending."""
        return self.keys.shape[2]


@dataclass(frozen=True)
class DenseBlockWeights:
    """What lies between the mixers of two layers, and the projection into the next; norms float32 ``[K]``."""

    out_proj: PackedLinear
    norm: torch.Tensor
    gate_up: PackedLinear  # gate | up
    down: PackedLinear
    next_norm: torch.Tensor
    next_in_proj: PackedLinear | None  # None of the last layer
    eps: float
