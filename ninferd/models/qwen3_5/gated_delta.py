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
    projected: torch.Tensor,
    groups: SequenceGroups,
    caches: Caches,
) -> torch.Tensor:
    """Mix what ``in_proj`` yields into each sequence's conv and recurrent state and read it back, for ``out_proj``."""
    weights, index = layer.weights, layer.state_layer
    conv, recurrent = caches.conv, caches.recurrent

    def decode(group: DecodeGroup) -> torch.Tensor:
        rows = group.select(projected)
        if group.accepted is None:
            if group.rows_per_sequence > 1:
                raise ValueError("rows that may be rejected need to know what was accepted of those before")
            return ops.gated_delta_decode(rows, weights, conv, recurrent, index, group.state_slots, shape)
        if caches.pending is None:
            raise ValueError("rows that may be rejected need caches with room for pending rows")
        states = conv, recurrent, caches.pending
        return ops.gated_delta_round(rows, weights, *states, index, group.state_slots, group.accepted, shape)

    def prefill(span: PrefillSpan) -> torch.Tensor:
        rows = projected[span.rows]
        return ops.gated_delta_prefill(rows, weights, conv, recurrent, index, span.state_slot, shape)

    return groups.apply(projected, shape.value_width, decode, prefill)
