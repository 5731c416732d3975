"""The gated delta rule as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia import gated_delta_ops
from kernels_numba.nvidia.gated_delta_layout import DIM, TAPS
from kernels_numba.ops import GatedDelta
from kernels_numba.shapes import GatedDeltaShape, GatedDeltaWeights
from tests.kernels_numba.inputs import GatedDeltaCase, converted
from tests.kernels_numba.nvidia.emulator import EmulatedDevice

SHAPE = GatedDeltaShape(key_heads=1, value_heads=2, key_dim=DIM, value_dim=DIM, conv_kernel=TAPS)
LAYER = 1


@dataclass
class States:
    """The same weights and states for the kernels and, in float64, for the reference."""

    weights: GatedDeltaWeights
    conv: Tensor
    recurrent: Tensor

    @classmethod
    def on(cls, device: EmulatedDevice) -> States:
        gated_delta_ops._workspace.cache_clear()
        case = GatedDeltaCase.random(SHAPE, 1)
        weights = converted(case.weights, torch.float32)
        conv, recurrent = case.conv.bfloat16(), case.recurrent.float()
        device.tensors += [weights.conv, weights.decay_rate, weights.dt_bias, weights.norm, conv, recurrent]
        device.tensors.append(gated_delta_ops._workspace(conv.device).counters)
        return cls(weights, conv, recurrent)

    def exact(self) -> States:
        return States(converted(self.weights, torch.float64), self.conv.double(), self.recurrent.double())

    def run(self, op: GatedDelta, projected: Tensor, slots: Tensor) -> Tensor:
        return op(projected, self.weights, self.conv, self.recurrent, LAYER, slots, SHAPE)


def random_rows(device: EmulatedDevice, rows: int, seed: int = 0) -> Tensor:
    """Keys that have much in common, and decays so weak that the first tokens count to the end."""
    projected = GatedDeltaCase.random(SHAPE, rows, seed).projected
    projected[1:, : SHAPE.conv_channels] += projected[:1, : SHAPE.conv_channels]
    projected[:, -SHAPE.value_heads :] -= 5
    projected = projected.bfloat16()
    device.tensors.append(projected)
    return projected


def indices(device: EmulatedDevice, *slots: int) -> Tensor:
    device.tensors.append(torch.tensor(slots))
    return device.tensors[-1]


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("splits", "slots"), [(1, [3, 0]), (2, [1, 4]), (4, [5])], ids=str)
def test_decode(emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, splits: int, slots: list[int]) -> None:
    monkeypatch.setattr(gated_delta_ops, "step_splits", lambda *_: splits)
    ours, rows = States.on(emulated), indices(emulated, *slots)
    exact, projected = ours.exact(), random_rows(emulated, len(slots))
    projected[0, -SHAPE.value_heads :] = torch.tensor([-30.0, 60.0])  # hardly any and nothing but decay
    out = ours.run(gated_delta_ops.gated_delta_decode, projected, rows)
    assert distance(out, exact.run(reference.gated_delta_decode, projected.double(), rows)) < 2e-3
    assert distance(ours.recurrent, exact.recurrent) < 1e-7
    assert torch.equal(ours.conv.double(), exact.conv)
    assert not gated_delta_ops._workspace(projected.device).counters.any()


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_prefill(emulated: EmulatedDevice, tokens: int) -> None:
    ours, slot = States.on(emulated), indices(emulated, 3)
    exact, projected = ours.exact(), random_rows(emulated, tokens)
    out = ours.run(gated_delta_ops.gated_delta_prefill, projected, slot)
    expected = exact.run(reference.gated_delta_prefill, projected.double(), slot)
    chunked = tokens >= gated_delta_ops.CHUNKED_FROM
    assert ("gated_delta_scan" in emulated.launched) == chunked
    assert distance(out, expected) < (3e-3 if chunked else 2e-3)
    assert distance(ours.recurrent, exact.recurrent) < (1e-3 if chunked else 1e-7)
    assert torch.equal(ours.conv.double(), exact.conv)


def test_a_broken_state_stays_in_its_sequence(emulated: EmulatedDevice) -> None:
    ours, slots = States.on(emulated), indices(emulated, 3, 0)
    ours.recurrent[3] = torch.nan
    out = ours.run(gated_delta_ops.gated_delta_decode, random_rows(emulated, 2), slots)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    assert ours.recurrent[[0, 1, 2, 4, 5]].isfinite().all()
