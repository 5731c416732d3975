"""Mixture of experts on top of any implementation of its products."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_numba.ops import Linear, MoeExperts, SiluMul
from kernels_numba.shapes import PackedLinear


def routed_experts(linear: Linear, silu_mul: SiluMul) -> MoeExperts:
    """The op ``moe_experts`` that runs every chosen expert once, on all of its rows. It waits for the device."""

    def moe_experts(
        x: Tensor, routing: Tensor, gate_up: PackedLinear, down: PackedLinear, top_k: int, shared: Tensor
    ) -> Tensor:
        probabilities, chosen = routing[:, :-1].float().softmax(-1).topk(top_k)
        probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.sigmoid(routing[:, -1:]) * shared
        for expert in torch.unique(chosen).tolist():
            rows, ranks = (chosen == expert).nonzero(as_tuple=True)
            hidden = silu_mul(linear(x[rows], gate_up[expert]))
            out.index_add_(0, rows, linear(hidden, down[expert]) * probabilities[rows, ranks, None])
        return out

    return moe_experts
