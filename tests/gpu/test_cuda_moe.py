"""Mixtures of experts by CUDA kernels against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.matrices import Matrix
from kernels_numba.nvidia import moe_ops
from kernels_numba.nvidia.linear import pack_linear
from kernels_numba.nvidia.linear_formats import FURTHER_FORMATS
from tests.kernels_numba.weights import RandomMatrices

pytestmark = pytest.mark.gpu

ROUNDING = 2**-7
"""Of hidden activations and of results to bfloat16, by norm; the sums of an expert may cancel."""


class Experts:
    """Random stacks on the device; the values of those that are asked for, in float64."""

    def __init__(self, device: torch.device, kind: str, experts: int, hidden: int, inner: int) -> None:
        make = RandomMatrices(experts).by_name(kind)
        self.experts, self.hidden, self.device = experts, hidden, device
        self._matrices = make(experts, 2 * inner, hidden), make(experts, hidden, inner)
        self.gate_up, self.down = (pack_linear(self._moved(each)) for each in self._matrices)

    def _moved(self, matrix: Matrix) -> Matrix:
        planes: dict[str, Any] = {name: plane.to(self.device) for name, plane in matrix.planes.items()}
        return replace(matrix, **planes)

    def inputs(self, tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x, shared = torch.randn(2, tokens, self.hidden, generator=generator).bfloat16()
        routing = torch.randn(tokens, self.experts + 1, generator=generator).bfloat16()
        return (x / self.hidden**0.5).to(self.device), routing.to(self.device), shared.to(self.device)

    def run(self, x: Tensor, routing: Tensor, shared: Tensor, top_k: int) -> Tensor:
        return moe_ops.moe_experts(x, routing, self.gate_up, self.down, top_k, shared)

    def expected(self, x: Tensor, routing: Tensor, shared: Tensor, top_k: int) -> Tensor:
        """On the CPU, with the values of chosen experts only."""
        x, routing, shared = x.double().cpu(), routing.double().cpu(), shared.double().cpu()
        values: dict[int, tuple[Tensor, Tensor]] = {}
        out = torch.sigmoid(routing[:, -1:]) * shared
        for row in range(x.shape[0]):
            logits, order = routing[row, :-1].sort(descending=True, stable=True)
            weights = torch.softmax(logits[:top_k], 0)
            for weight, expert in zip(weights, order[:top_k].tolist(), strict=True):
                if expert not in values:
                    wide, back = (reference.dequantised(each[expert]) for each in self._matrices)
                    values[expert] = wide, back
                gate, up = (values[expert][0] @ x[row]).chunk(2)
                out[row] += weight * (values[expert][1] @ (gate * torch.sigmoid(gate) * up))
        return out


def report(name: str, found: Tensor, expected: Tensor) -> None:
    error = (found.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)
    print(f"{name}: {error.max():.2e}")
    assert (error <= ROUNDING).all()


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_large_layer(device: torch.device, tokens: int) -> None:
    """That of Qwen3.6-35B-A3B."""
    experts = Experts(device, "nvfp4", 256, 2048, 512)
    inputs = experts.inputs(tokens)
    report(f"256 experts, {tokens} tokens", experts.run(*inputs, 8), experts.expected(*inputs, 8))


@pytest.mark.parametrize("kind", ["nvfp4", "fp8_row", "fp8_block", "q8", "q6", "q5", "q4", "bfloat16"])
@pytest.mark.parametrize("tokens", [3, 70, 700])
def test_formats(device: torch.device, kind: str, tokens: int) -> None:
    """Pairs one by one, and put together by expert; the first rows alone have the same bits."""
    experts = Experts(device, kind, 20, 384, 256)
    x, routing, shared = experts.inputs(tokens)
    found = experts.run(x, routing, shared, 4)
    assert torch.equal(experts.run(x[:3], routing[:3], shared[:3], 4), found[:3])
    report(f"{kind}, {tokens} tokens", found[:70], experts.expected(x[:70], routing[:70], shared[:70], 4))


@pytest.mark.parametrize("tokens", [4, 128])
def test_neither_waits_and_may_be_captured(device: torch.device, tokens: int) -> None:
    """A replay sees other experts than the capture did."""
    experts = Experts(device, "nvfp4", 64, 512, 256)
    first, second = experts.inputs(tokens), experts.inputs(tokens, seed=1)
    expected = [experts.run(*inputs, 8).clone() for inputs in (first, second)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        experts.run(*first, 8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    held = [each.clone() for each in first]
    with torch.cuda.graph(graph):
        out = experts.run(held[0], held[1], held[2], 8)
    for inputs, result in zip((first, second), expected, strict=True):
        for place, value in zip(held, inputs, strict=True):
            place.copy_(value)
        graph.replay()
        assert torch.equal(out, result)


def test_the_self_test(device: torch.device) -> None:
    moe_ops.check(device)
    moe_ops.check(device, FURTHER_FORMATS)


def test_rows_of_no_numbers_stay_alone(device: torch.device) -> None:
    experts = Experts(device, "nvfp4", 8, 256, 128)
    x, routing, shared = experts.inputs(40)
    clean = experts.run(x, routing, shared, 4)
    x[3], x[17, 5], routing[20, 2] = torch.inf, torch.nan, torch.nan
    found = experts.run(x, routing, shared, 4)
    spoilt = torch.tensor([3, 17, 20])
    kept = torch.tensor([row for row in range(40) if row not in spoilt.tolist()])
    assert torch.equal(found[kept], clean[kept])
    assert not found[spoilt].isfinite().all(1).any()
