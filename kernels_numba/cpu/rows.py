"""Norms and gates, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, REORDERED, compiled
from kernels_numba.cpu.scalar import silu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x)
    _rms_norm(x.numpy(), weight.numpy(), eps, out.numpy())
    return out


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total, normed = torch.empty_like(x), torch.empty_like(x)
    _add_rms_norm(residual.numpy(), x.numpy(), weight.numpy(), eps, total.numpy(), normed.numpy())
    return total, normed


def silu_mul(gate_up: Tensor) -> Tensor:
    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
    _silu_mul(gate_up.numpy(), out.numpy())
    return out


@compiled(REORDERED)
def rms_norm_row(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """``out = weight * x / sqrt(mean(x²) + eps)`` of one row; ``out`` may be ``x``."""
    squares = np.float32(0)
    for c in range(x.shape[0]):
        squares += x[c] * x[c]
    scale = np.float32(1 / np.sqrt(squares / x.shape[0] + eps))
    for c in range(x.shape[0]):
        out[c] = weight[c] * (x[c] * scale)


@compiled(ORDERED)
def _rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for row in range(x.shape[0]):
        rms_norm_row(x[row], weight, eps, out[row])


@compiled(ORDERED)
def _add_rms_norm(residual: Any, x: Any, weight: Any, eps: Any, total: Any, normed: Any) -> None:
    for row in range(x.shape[0]):
        for c in range(x.shape[1]):
            total[row, c] = residual[row, c] + x[row, c]
        rms_norm_row(total[row], weight, eps, normed[row])


@compiled(ORDERED)
def _silu_mul(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for row in range(out.shape[0]):
        gate, up = gate_up[row, :width], gate_up[row, width:]
        for c in range(width):
            out[row, c] = silu(gate[c]) * up[c]
