"""Norms and gates by CUDA kernels against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia import norms_ops

pytestmark = pytest.mark.gpu

ROUNDING = 2**-8  # of a result to bfloat16
SIZES = pytest.mark.parametrize(
    ("rows", "width"), [(0, 64), (1, 8), (1, 5120), (3, 2048), (4, 5128), (16, 12288), (300, 2560), (4096, 5120)]
)


def normal(seed: int, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def report(name: str, found: Tensor, expected: Tensor) -> None:
    """Elementwise, to the rounding of the result."""
    assert found.dtype == torch.bfloat16
    error = ((found.double() - expected).abs() / expected.abs().clamp_min(1e-30)).max().item() if found.numel() else 0
    print(f"{name} {list(found.shape)}: {error:.2e}")
    assert error <= ROUNDING


@SIZES
def test_rms_norm(device: torch.device, rows: int, width: int) -> None:
    x, weight = (3 * normal(0, rows, width)).bfloat16(), normal(1, width)
    found = norms_ops.rms_norm(x, weight, 1e-6)
    report("rms_norm", found, reference.rms_norm(x.double(), weight.double(), 1e-6))


@SIZES
def test_add_rms_norm(device: torch.device, rows: int, width: int) -> None:
    wide, weight = normal(2, rows, width + 24).bfloat16(), normal(3, width)
    residual, x = wide[:, 8 : width + 8], normal(4, rows, width).bfloat16()
    total, found = norms_ops.add_rms_norm(residual, x, weight, 1e-6)
    assert torch.equal(total, residual + x)
    report("add_rms_norm", found, reference.rms_norm(total.double(), weight.double(), 1e-6))


@SIZES
def test_silu_mul(device: torch.device, rows: int, width: int) -> None:
    gate_up = (5 * normal(5, rows, 2 * width)).bfloat16()
    report("silu_mul", norms_ops.silu_mul(gate_up), reference.silu_mul(gate_up.double()))


@pytest.mark.parametrize("width", [17, 100])
def test_torch_takes_odd_widths(device: torch.device, width: int) -> None:
    x, weight = normal(6, 3, width).bfloat16(), normal(7, width)
    report("rms_norm", norms_ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x.double(), weight.double(), 1e-6))


def test_what_is_not_finite_stays_in_its_row(device: torch.device) -> None:
    x, weight = normal(8, 4, 5120).bfloat16(), normal(9, 5120)
    x[1, 4000], x[2, 17] = torch.nan, torch.inf
    found = norms_ops.rms_norm(x, weight, 1e-6)
    assert found[1].isnan().all()
    assert found[2].isnan().any()
    assert found[[0, 3]].isfinite().all()
    gated = norms_ops.silu_mul(x)
    assert gated[[0, 3]].isfinite().all()
    assert not gated[1].isfinite().all()


def test_nothing_waits_and_a_graph_replays(device: torch.device) -> None:
    x, weight = normal(10, 4, 5120).bfloat16(), normal(11, 5120)

    def run() -> Tensor:
        total, normed = norms_ops.add_rms_norm(x, norms_ops.rms_norm(x, weight, 1e-6), weight, 1e-6)
        return norms_ops.silu_mul(torch.cat([total, normed], 1))

    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run()
    x.copy_(normal(12, 4, 5120))
    expected = run()
    graph.replay()
    assert torch.equal(replayed, expected)
