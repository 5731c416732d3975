"""Linear attention by the gated delta rule, with a short causal convolution before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.ops import OpTable
from kernels_numba.shapes import GatedDeltaShape, GatedDeltaWeights, PackedLinear
from ninferd.models.batch import Caches
from ninferd.models.qwen3_5.groups import DecodeGroup, PrefillSpan, SequenceGroups


@dataclass(frozen=True)
class GatedDeltaLayer:
    """Weights of one gated delta rule layer."""

    in_proj: PackedLinear  # conv input | z | b | a, see GatedDeltaShape
    out_proj: PackedLinear
    weights: GatedDeltaWeights
    state_layer: int  # index among the gated delta rule layers


def gated_delta(
    ops: OpTable,
    shape: GatedDeltaShape,
    layer: GatedDeltaLayer,
    hidden: torch.Tensor,
    groups: SequenceGroups,
    caches: Caches,
) -> torch.Tensor:
    """Mix ``hidden [N, hidden]`` into each sequence's conv and recurrent state and read it back."""
    projected = ops.linear(hidden, layer.in_proj)
    weights, index = layer.weights, layer.state_layer
    conv, recurrent = caches.conv, caches.recurrent

    def decode(group: DecodeGroup) -> torch.Tensor:
        rows = group.select(projected)
        return ops.gated_delta_decode(rows, weights, conv, recurrent, index, group.state_slots, shape)

    def prefill(span: PrefillSpan) -> torch.Tensor:
        rows = projected[span.rows]
        return ops.gated_delta_prefill(rows, weights, conv, recurrent, index, span.state_slot, shape)

    mixed = groups.apply(projected, shape.value_width, decode, prefill)
    return ops.linear(mixed, layer.out_proj)
