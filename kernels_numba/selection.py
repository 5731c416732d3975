"""Which implementation of the op table serves."""

from __future__ import annotations

import torch

from kernels_numba.ops import OpTable


def ops_for(device: torch.device, dtype: torch.dtype) -> OpTable:
    """The implementations that serve activations of ``dtype`` on ``device``; only those are imported."""
    if device.type == "cpu" and dtype == torch.float32:
        from kernels_numba.cpu.table import CPU_OPS

        return CPU_OPS
    from kernels_numba.torch_ops.table import TORCH_OPS

    return TORCH_OPS
