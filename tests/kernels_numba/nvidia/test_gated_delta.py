"""The gated delta rule as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia import gated_delta_ops
from kernels_numba.nvidia.gated_delta_layout import DIM, TAPS
from kernels_numba.ops import GatedDelta
from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights
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
        gated_delta_ops._counters.cache_clear()
        case = GatedDeltaCase.random(SHAPE, 1)
        weights = converted(case.weights, torch.float32)
        conv, recurrent = case.conv.bfloat16(), case.recurrent.float()
        device.tensors += [weights.conv, weights.decay_rate, weights.dt_bias, weights.norm, conv, recurrent]
        device.tensors.append(gated_delta_ops._counters(conv.device))
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


@pytest.mark.parametrize("slots", [[5], [3, 0]], ids=str)
def test_decode(emulated: EmulatedDevice, slots: list[int]) -> None:
    ours, rows = States.on(emulated), indices(emulated, *slots)
    exact, projected = ours.exact(), random_rows(emulated, len(slots))
    projected[0, -SHAPE.value_heads :] = torch.tensor([-30.0, 60.0])  # hardly any and nothing but decay
    out = ours.run(gated_delta_ops.gated_delta_decode, projected, rows)
    assert distance(out, exact.run(reference.gated_delta_decode, projected.double(), rows)) < 2e-3
    assert distance(ours.recurrent, exact.recurrent) < 1e-7
    assert torch.equal(ours.conv.double(), exact.conv)
    assert not gated_delta_ops._counters(projected.device).any()


def pending_rows(device: EmulatedDevice, rows: int) -> GatedDeltaPending:
    """Room for pending rows in all slots, and nothing in it yet."""
    sizes = [(SHAPE.conv_channels,), (SHAPE.key_heads, DIM), (SHAPE.value_heads, DIM), (SHAPE.value_heads,)]
    inputs, keys, deltas, log_decays = (torch.full((6, 2, rows, *size), torch.nan) for size in sizes)
    pending = GatedDeltaPending(inputs.bfloat16(), keys, deltas, log_decays)
    device.tensors += [pending.inputs, keys, deltas, log_decays]
    return pending


def exact_pending(pending: GatedDeltaPending) -> GatedDeltaPending:
    return GatedDeltaPending(*(getattr(pending, field.name).double() for field in fields(pending)))


@pytest.mark.parametrize(
    ("slots", "rounds"),
    [
        ([5, 1], [(3, [0, 0]), (2, [3, 1]), (1, [0, 2])]),
        ([2], [(10, [0]), (2, [9])]),
    ],
    ids=["3, 2 and 1 rows of 2 sequences", "10 and 2 rows"],
)
def test_rounds(emulated: EmulatedDevice, slots: list[int], rounds: list[tuple[int, list[int]]]) -> None:
    ours, where, pending = States.on(emulated), indices(emulated, *slots), pending_rows(emulated, 10)
    exact, expected_pending = ours.exact(), exact_pending(pending)
    for number, (tokens, accepted) in enumerate(rounds):
        counts, projected = indices(emulated, *accepted), random_rows(emulated, len(slots) * tokens, number)
        arguments = LAYER, where, counts, SHAPE
        out = gated_delta_ops.gated_delta_round(projected, ours.weights, ours.conv, ours.recurrent, pending, *arguments)
        expected = reference.gated_delta_round(
            projected.double(), exact.weights, exact.conv, exact.recurrent, expected_pending, *arguments
        )
        assert distance(out, expected) < 2e-3
        assert distance(ours.recurrent, exact.recurrent) < 1e-6
        assert torch.equal(ours.conv.double(), exact.conv)
        for field in fields(pending):
            found = getattr(pending, field.name)[where, LAYER, :tokens]
            assert distance(found, getattr(expected_pending, field.name)[where, LAYER, :tokens]) < 1e-5, field.name
    assert emulated.launched == ["gated_delta_rows"] * len(rounds)
    assert not gated_delta_ops._counters(projected.device).any()


def test_commit(emulated: EmulatedDevice) -> None:
    ours, where, pending = States.on(emulated), indices(emulated, 4, 0, 1), pending_rows(emulated, 3)
    generator = torch.Generator().manual_seed(0)
    for field in fields(pending):
        getattr(pending, field.name).normal_(generator=generator)
    pending.log_decays[:] = -pending.log_decays.abs().cumsum(2)
    exact, counts = ours.exact(), indices(emulated, 2, 3, 0)
    pending.deltas[1] = torch.nan  # which do not count
    pending.keys[4, :, 2:] = torch.nan
    before = ours.recurrent.clone()
    gated_delta_ops.gated_delta_commit(ours.conv, ours.recurrent, pending, where, counts, SHAPE)
    reference.gated_delta_commit(exact.conv, exact.recurrent, exact_pending(pending), where, counts, SHAPE)
    assert distance(ours.recurrent, exact.recurrent) < 1e-6
    assert torch.equal(ours.conv.double(), exact.conv)
    assert torch.equal(ours.recurrent[[1, 2, 3, 5]], before[[1, 2, 3, 5]])


@pytest.mark.parametrize(
    ("tokens", "shared_kib", "factor"),
    [(1, 99, 1), (2, 99, 1), (70, 99, 1), (66, 227, 1e6)],
    ids=["1", "2", "70", "66, copies ahead, values beyond halves"],
)
def test_prefill(
    emulated: EmulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    shared_kib: int,
    factor: float,
) -> None:
    monkeypatch.setattr(emulated, "shared_bytes_per_block", shared_kib << 10)
    ours, slot = States.on(emulated), indices(emulated, 3)
    projected = random_rows(emulated, tokens)
    projected[:, 2 * SHAPE.key_width : SHAPE.conv_channels] *= factor
    exact = ours.exact()
    out = ours.run(gated_delta_ops.gated_delta_prefill, projected, slot)
    expected = exact.run(reference.gated_delta_prefill, projected.double(), slot)
    chunked = tokens >= gated_delta_ops.CHUNKED_FROM
    assert ("gated_delta_scan" in emulated.launched) == chunked
    assert distance(out, expected) < (3e-3 if chunked else 2e-3)
    assert distance(ours.recurrent, exact.recurrent) < (1e-3 if chunked else 1e-7)
    assert torch.equal(ours.conv.double(), exact.conv)


def test_what_reads_states_early_never_follows_what_writes_them() -> None:
    """Of the same layer: the launch in front may still run, those before it have ended."""
    first, second = torch.zeros(2), torch.zeros(2)
    launches = [(first, 0), (first, 0), (first, 1), (first, 0), (second, 0), (second, 0)]
    may = [gated_delta_ops._may_overlap(*launch) for launch in launches]
    assert may == [True, False, True, True, True, False]


def test_a_broken_state_stays_in_its_sequence(emulated: EmulatedDevice) -> None:
    ours, slots = States.on(emulated), indices(emulated, 3, 0)
    ours.recurrent[3] = torch.nan
    out = ours.run(gated_delta_ops.gated_delta_decode, random_rows(emulated, 2), slots)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    assert ours.recurrent[[0, 1, 2, 4, 5]].isfinite().all()


def test_a_broken_sequence_leaves_the_others_of_a_round_alone(emulated: EmulatedDevice) -> None:
    ours, slots, pending = States.on(emulated), indices(emulated, 3, 0), pending_rows(emulated, 2)
    counts, projected = indices(emulated, 0, 0), random_rows(emulated, 4)
    projected[:2] = torch.inf
    arguments = ours.weights, ours.conv, ours.recurrent, pending, LAYER, slots, counts, SHAPE
    before = ours.recurrent.clone()
    out = gated_delta_ops.gated_delta_round(projected, *arguments)
    assert out[:2].isnan().all()
    assert out[2:].isfinite().all()
    assert torch.equal(ours.recurrent, before)
    counts[:] = 2
    out = gated_delta_ops.gated_delta_round(random_rows(emulated, 4, 1), *arguments)
    assert out[2:].isfinite().all()
    assert ours.recurrent[[0, 1, 2, 4, 5]].isfinite().all()
    assert ours.recurrent[3, LAYER].isnan().all()
