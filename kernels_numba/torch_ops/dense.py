"""Products, norms, gates and experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pack_linear(weight: Tensor) -> Tensor:
    """The checkpoint's own order, ``[M, K]``."""
    return weight.contiguous()


def linear(x: Tensor, packed: Tensor) -> Tensor:
    return functional.linear(x, packed)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual + x
    return total, rms_norm(total, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def moe_experts(x: Tensor, router_logits: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
    """Every chosen expert once, on all of its rows."""
    probabilities, chosen = router_logits.float().softmax(-1).topk(top_k)
    probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).to(x.dtype)
    out = torch.zeros_like(x)
    for expert in torch.unique(chosen).tolist():
        rows, ranks = (chosen == expert).nonzero(as_tuple=True)
        hidden = silu_mul(functional.linear(x[rows], gate_up[expert]))
        out.index_add_(0, rows, functional.linear(hidden, down[expert]) * probabilities[rows, ranks, None])
    return out
