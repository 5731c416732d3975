"""The dense feed-forward block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.ops import OpTable
from kernels_numba.shapes import PackedLinear


@dataclass(frozen=True)
class MlpLayer:
    """Weights of a SwiGLU block."""

    gate_up: PackedLinear  # gate | up
    down: PackedLinear


def mlp(ops: OpTable, layer: MlpLayer, hidden: torch.Tensor) -> torch.Tensor:
    """``down(silu(gate(x)) * up(x))`` of ``[N, hidden]``."""
    return ops.linear(ops.silu_mul(ops.linear(hidden, layer.gate_up)), layer.down)
