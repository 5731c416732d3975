"""Mixtures of experts as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.matrices import Matrix
from kernels_numba.nvidia import moe_ops
from kernels_numba.nvidia.linear import StreamSegment, stream_segment
from kernels_numba.nvidia.linear_packing import stream_format
from kernels_numba.routing import routed_experts
from kernels_numba.shapes import PackedLinear
from kernels_numba.torch_ops import dense
from kernels_numba.torch_ops import linear as torch_linear
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.nvidia.emulator import EmulatedDevice
from tests.kernels_numba.weights import RandomMatrices, values

ROUNDING = 2**-7
"""Of hidden activations and of results to bfloat16, 2^-9 each at most; the sums of an expert may cancel."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    emulated = EmulatedDevice(random.Random(0))
    monkeypatch.setattr(moe_ops, "device_of", lambda _: emulated)
    monkeypatch.setattr(moe_ops, "_expert_by_expert", routed_experts(torch_linear.linear, dense.silu_mul))
    monkeypatch.setattr(torch, "empty", emulated.empty)
    return emulated


def packed(matrix: Matrix, slices: int) -> PackedLinear:
    weights = stream_format(matrix)
    assert weights is not None
    return PackedLinear((stream_segment(matrix, weights, slices, 1),))


class Layer:
    """Random weights of a mixture of experts, and inputs."""

    def __init__(self, kind: str, experts: int, hidden: int, inner: int, slices: tuple[int, int] = (1, 1)) -> None:
        make = RandomMatrices(hidden + inner).by_name(kind)
        self.matrices = make(experts, 2 * inner, hidden), make(experts, hidden, inner)
        self.gate_up, self.down = (packed(*each) for each in zip(self.matrices, slices, strict=True))
        self.experts, self.hidden = experts, hidden

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Activations, routing and the shared expert's output; activations of very different sizes."""
        generated = Random(tokens)
        sizes = torch.exp2(torch.arange(tokens)[:, None] % 5 * 3.0 - 6)
        x = (generated.normal(tokens, self.hidden + 8) * sizes / self.hidden**0.5).bfloat16()[:, : self.hidden]
        routing = (2 * generated.normal(tokens, self.experts + 1)).bfloat16()
        return x, routing, generated.normal(tokens, self.hidden).bfloat16()

    def check(self, device: EmulatedDevice, x: Tensor, routing: Tensor, shared: Tensor, top_k: int) -> Tensor:
        device.tensors += [x, routing, shared]
        for segment in (*self.gate_up.segments, *self.down.segments):
            assert isinstance(segment, StreamSegment)
            device.tensors += [segment.stream, segment.factors]
        found = moe_ops.moe_experts(x, routing, self.gate_up, self.down, top_k, shared)
        gate_up, down = (
            torch.stack([values(each[expert]) for expert in range(self.experts)]) for each in self.matrices
        )
        expected = reference.moe_experts(x.double(), routing.double(), gate_up, down, top_k, shared.double())
        error = (found.double() - expected).norm(dim=1) / expected.norm(dim=1)
        assert (error <= ROUNDING).all(), error
        return found


@pytest.mark.parametrize("kind", ["nvfp4", "fp8_row", "fp8_block", "q8", "q6", "q5", "q4", "bfloat16"])
def test_one_token(device: EmulatedDevice, kind: str) -> None:
    layer = Layer(kind, experts=3, hidden=256, inner=128)
    layer.check(device, *layer.inputs(1), top_k=2)
    weights = stream_format(layer.matrices[0])
    assert weights is not None
    stream = weights.name
    assert device.launched == ["moe_route", f"moe_up_{stream}", f"moe_down_{stream}", "moe_combine"]
    (variant,) = moe_ops.GROUP.variants
    assert set(device.launched) <= {*moe_ops.GROUP.kernels, *variant.kernels}


def test_formats_whose_own_self_test_failed_go_expert_by_expert(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe_ops, "_expert_by_expert", lambda *_: "expert by expert")
    for kind, kernels in (("q6", False), ("q4", True)):
        layer = Layer(kind, experts=2, hidden=128, inner=128)
        x, routing, shared = layer.inputs(1)
        for segment in (*layer.gate_up.segments, *layer.down.segments):
            assert isinstance(segment, StreamSegment)
            device.tensors += [segment.stream, segment.factors]
        device.tensors += [x, routing, shared]
        found = moe_ops.GROUP.ops["moe_experts"](x, routing, layer.gate_up, layer.down, 1, shared)
        assert isinstance(found, Tensor) is kernels


@pytest.mark.parametrize(
    ("hidden", "inner", "slices"),
    [(128, 128, (1, 1)), (512, 256, (2, 2)), (1280, 128, (2, 1)), (2048, 128, (8, 1))],
    ids=str,
)
def test_warps_share_tiles(device: EmulatedDevice, hidden: int, inner: int, slices: tuple[int, int]) -> None:
    """One, four, ten and sixteen steps of a tile, whose parts may begin in the middle of a slice."""
    layer = Layer("nvfp4", 2, hidden, inner, slices)
    layer.check(device, *layer.inputs(1), top_k=1)


@pytest.mark.parametrize("tokens", [2, 9])
def test_experts_with_many_tokens(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Pairs are put together by expert: of up to eight rows, of one, of none, and of more than one item."""
    monkeypatch.setattr(moe_ops, "ALONE_PAIRS", 0)
    layer = Layer("nvfp4", experts=4, hidden=128, inner=128)
    x, routing, shared = layer.inputs(tokens)
    routing[:, 1] = 9  # everybody's
    routing[:, 3] = -9  # nobody's
    together = layer.check(device, x, routing, shared, top_k=2)
    assert "moe_group" in device.launched
    monkeypatch.setattr(moe_ops, "ALONE_PAIRS", 1 << 10)
    assert torch.equal(layer.check(device, x, routing, shared, top_k=2), together)


def test_equal_logits_choose_the_first_experts(device: EmulatedDevice) -> None:
    layer = Layer("nvfp4", experts=40, hidden=128, inner=128)
    x, routing, shared = layer.inputs(2)
    routing[0, :-1], routing[1, :-1] = 1.5, -3.25
    routing[1, 35] = routing[1, 37] = routing[1, 39] = 0.5
    layer.check(device, x, routing, shared, top_k=2)


def test_a_token_of_no_numbers_does_not_disturb_others(device: EmulatedDevice) -> None:
    layer = Layer("nvfp4", experts=3, hidden=128, inner=128)
    x, routing, shared = layer.inputs(3)
    found = layer.check(device, x.clone(), routing, shared, top_k=2)
    x[1, 5] = torch.inf
    device.tensors.append(x)
    spoilt = moe_ops.moe_experts(x, routing, layer.gate_up, layer.down, 2, shared)
    assert not spoilt[1].isfinite().all()
    assert torch.equal(spoilt[[0, 2]], found[[0, 2]])


def test_hidden_activations_beyond_halves(device: EmulatedDevice) -> None:
    """Products of 10^9 and of 10^-9 in two tokens of one expert."""
    layer = Layer("bfloat16", experts=1, hidden=128, inner=128)
    x, routing, shared = layer.inputs(2)
    x = x * torch.tensor([[2.0**20], [2.0**-20]]).bfloat16()
    layer.check(device, x, routing, shared * 0, top_k=1)


def test_what_kernels_do_not_take_goes_expert_by_expert(device: EmulatedDevice) -> None:
    """Such as plain weights that were not packed."""
    layer = Layer("bfloat16", experts=3, hidden=128, inner=128)
    x, routing, shared = layer.inputs(2)
    gate_up, down = (PackedLinear((each,)) for each in layer.matrices)
    found = moe_ops.moe_experts(x.contiguous(), routing, gate_up, down, 2, shared)
    wide, back = (each.planes["values"].double() for each in layer.matrices)
    expected = reference.moe_experts(x.double(), routing.double(), wide, back, 2, shared.double())
    assert (found.double() - expected).norm() <= 2 * ROUNDING * expected.norm()
    assert not device.launched
