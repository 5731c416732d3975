"""The mixture-of-experts feed-forward block: routed experts and one gated shared expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.ops import OpTable
from kernels_numba.shapes import PackedLinear
from ninferd.models.qwen3_5.mlp import MlpLayer, mlp


@dataclass(frozen=True)
class MoeLayer:
    """Weights of one mixture of experts."""

    router: PackedLinear  # the routed experts' logits | the shared expert's gate
    gate_up: PackedLinear  # a stack, one matrix per expert
    down: PackedLinear  # a stack
    shared: MlpLayer
    experts_per_token: int


def moe(ops: OpTable, layer: MoeLayer, hidden: torch.Tensor) -> torch.Tensor:
    """Routed experts plus sigmoid(gate) times the shared expert, ``[N, hidden]``."""
    routing = ops.linear(hidden, layer.router)
    shared = mlp(ops, layer.shared, hidden)
    return ops.moe_experts(hidden, routing, layer.gate_up, layer.down, layer.experts_per_token, shared)
