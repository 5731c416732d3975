"""The quantisers of weights for a device."""

from __future__ import annotations

import torch

from kernels_numba.cpu.quantise import CpuEncoders
from kernels_numba.torch_ops.quantise import TorchEncoders


def quantiser(device: torch.device) -> CpuEncoders | TorchEncoders:
    """Encoders of rows in host memory (``ninferd.weights.formats.encoders.Encoders``) that compute on ``device``."""
    return CpuEncoders() if device.type == "cpu" else TorchEncoders(device)
