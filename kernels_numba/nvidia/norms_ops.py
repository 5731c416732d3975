"""Norms and gates by CUDA kernels; torch takes what they do not: other types, odd widths and layouts."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.norms_kernels import KERNELS, NORM_THREADS, SILU_THREADS, VECTOR, norm_shared_bytes
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.torch_ops import dense

PROGRAMMATIC = True
"""Whether launches may begin before their predecessor ends."""
ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if not (_fits(x, x.shape[1]) and weight.data_ptr() % 16 == 0):
        return dense.rms_norm(x, weight, eps)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm("rms_norm", x, x, weight, out, out, eps)
    return out


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if not (_fits(x, x.shape[1]) and _fits(residual, x.shape[1]) and weight.data_ptr() % 16 == 0):
        return dense.add_rms_norm(residual, x, weight, eps)
    total, out = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    _launch_norm("add_rms_norm", x, residual, weight, total, out, eps)
    return total, out


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if not _fits(gate_up, width):
        return dense.silu_mul(gate_up)
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        blocks = -(-width // (SILU_THREADS * VECTOR))
        kernel = device_of(gate_up.device).kernel("silu_mul")
        sizes = 2 * gate_up.stride(0), width
        kernel((blocks, rows, 1), gate_up.data_ptr(), out.data_ptr(), *sizes, programmatic=PROGRAMMATIC)
    return out


def _fits(x: Tensor, width: int) -> bool:
    """Rows of whole vectors of 16 bytes."""
    return (
        x.dtype == torch.bfloat16
        and width % VECTOR == 0
        and x.stride(1) == 1
        and x.stride(0) % VECTOR == 0
        and x.data_ptr() % (2 * VECTOR) == 0
        and x.shape[0] < 1 << 16
    )


def _launch_norm(
    name: str, x: Tensor, residual: Tensor, weight: Tensor, total: Tensor, out: Tensor, eps: float
) -> None:
    rows, width = x.shape
    if not rows:
        return
    device = device_of(x.device)
    small, large = NORM_THREADS
    threads = small if width <= small * VECTOR or rows > 2 * device.multiprocessors else large
    device.kernel(f"{name}_{threads}")(
        (rows, 1, 1),
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        total.data_ptr(),
        out.data_ptr(),
        2 * x.stride(0),
        2 * residual.stride(0),
        width,
        eps,
        shared_bytes=norm_shared_bytes(width),
        programmatic=PROGRAMMATIC,
    )


def _check(device: torch.device) -> None:
    """Against the reference in float64."""
    generator = torch.Generator().manual_seed(0)
    for rows, width in ((3, 264), (1, 5120), (300, 2056)):
        x, residual, gate_up = torch.randn(3, rows, 2 * width, generator=generator).bfloat16()
        x, residual = x[:, :width].contiguous(), residual[:, :width].contiguous()
        weight = torch.randn(width, generator=generator)
        there = x.to(device), weight.to(device)
        total, normed = add_rms_norm(residual.to(device), *there, 1e-6)
        assert_close("add_rms_norm", total, residual.double() + x.double(), ROUNDING)
        assert_close("add_rms_norm", normed, reference.rms_norm((residual + x).double(), weight, 1e-6), ROUNDING)
        normed = rms_norm(*there, 1e-6)
        assert_close("rms_norm", normed, reference.rms_norm(x.double(), weight, 1e-6), ROUNDING)
        assert_close("silu_mul", silu_mul(gate_up.to(device)), reference.silu_mul(gate_up.double()), ROUNDING)


GROUP = OpGroup(
    "norms",
    tuple(spec.name for spec in KERNELS),
    {"rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "silu_mul": silu_mul},
    _check,
)
