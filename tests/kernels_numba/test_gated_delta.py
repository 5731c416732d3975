"""The gated delta rule against the float64 token recurrence."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from kernels_numba import reference
from kernels_numba.ops import OpTable
from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape
from tests.kernels_numba.inputs import GatedDeltaCase, converted

SHAPES = [
    GatedDeltaShape(key_heads=2, value_heads=4, key_dim=128, value_dim=128, conv_kernel=4),
    GatedDeltaShape(key_heads=1, value_heads=3, key_dim=16, value_dim=16, conv_kernel=4),
    GatedDeltaShape(key_heads=2, value_heads=2, key_dim=10, value_dim=7, conv_kernel=2),
]


ROUNDS = [
    pytest.param([3], [(4, [0]), (4, [4]), (1, [2]), (1, [1])], id="4, 4, 1 and 1 rows"),
    pytest.param([5, 0, 2], [(3, [0, 0, 0]), (7, [1, 3, 0]), (2, [7, 5, 6])], id="3, 7 and 2 rows of 3 sequences"),
]


def shape_id(shape: GatedDeltaShape) -> str:
    return f"{shape.key_heads}k{shape.value_heads}v x {shape.key_dim}x{shape.value_dim}, {shape.conv_kernel} taps"


def check_states(
    conv: torch.Tensor, recurrent: torch.Tensor, expected_conv: torch.Tensor, expected_recurrent: torch.Tensor
) -> None:
    """States agree; in particular those of other slots and layers are untouched."""
    rounding = 2**-8 if conv.dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(conv.double(), expected_conv, atol=1e-6, rtol=rounding)
    torch.testing.assert_close(recurrent.double(), expected_recurrent, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("slots", [[3], [5, 0, 2]], ids=str)
def test_decode(ops: OpTable, shape: GatedDeltaShape, slots: list[int]) -> None:
    case = GatedDeltaCase.random(shape, len(slots))
    conv, recurrent, rows = case.conv.float(), case.recurrent.float(), torch.tensor(slots)
    weights = converted(case.weights, torch.float32)
    for _ in range(5):  # the state goes round and round
        out = ops.gated_delta_decode(case.projected.float(), weights, conv, recurrent, 1, rows, shape)
        expected = reference.gated_delta_decode(case.projected, case.weights, case.conv, case.recurrent, 1, rows, shape)
        torch.testing.assert_close(out.double(), expected, atol=2e-4, rtol=1e-4)
    check_states(conv, recurrent, case.conv, case.recurrent)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("tokens", [2, 3, 5, 63, 64, 65, 130])
def test_prefill(ops: OpTable, shape: GatedDeltaShape, tokens: int) -> None:
    case = GatedDeltaCase.random(shape, tokens)
    conv, recurrent, slot = case.conv.float(), case.recurrent.float(), torch.tensor([4])
    weights = converted(case.weights, torch.float32)
    out = ops.gated_delta_prefill(case.projected.float(), weights, conv, recurrent, 0, slot, shape)
    expected = reference.gated_delta_prefill(case.projected, case.weights, case.conv, case.recurrent, 0, slot, shape)
    torch.testing.assert_close(out.double(), expected, atol=5e-4, rtol=1e-3)
    check_states(conv, recurrent, case.conv, case.recurrent)


def no_rows(case: GatedDeltaCase, rows: int, dtype: torch.dtype) -> GatedDeltaPending:
    """Room for pending rows, with NaN in it."""
    shape = case.shape
    sizes = [(shape.conv_channels,), (shape.key_heads, shape.key_dim), (shape.value_heads, shape.value_dim)]
    tensors = [torch.full((6, 2, rows, *size), torch.nan, dtype=dtype) for size in [*sizes, (shape.value_heads,)]]
    return GatedDeltaPending(*tensors)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize(("slots", "rounds"), ROUNDS)
def test_rounds(ops: OpTable, shape: GatedDeltaShape, slots: list[int], rounds: list[tuple[int, list[int]]]) -> None:
    case = GatedDeltaCase.random(shape, 0)
    conv, recurrent, where = case.conv.float(), case.recurrent.float(), torch.tensor(slots)
    weights = converted(case.weights, torch.float32)
    pending, expected_pending = no_rows(case, 7, torch.float32), no_rows(case, 7, torch.float64)
    for number, (tokens, accepted) in enumerate(rounds):
        projected, counts = GatedDeltaCase.random(shape, tokens * len(slots), number).projected, torch.tensor(accepted)
        out = ops.gated_delta_round(projected.float(), weights, conv, recurrent, pending, 1, where, counts, shape)
        expected = reference.gated_delta_round(
            projected, case.weights, case.conv, case.recurrent, expected_pending, 1, where, counts, shape
        )
        torch.testing.assert_close(out.double(), expected, atol=2e-4, rtol=1e-4)
        check_states(conv, recurrent, case.conv, case.recurrent)
        for field in fields(pending):
            found, wanted = (getattr(each, field.name)[:, :, :tokens] for each in (pending, expected_pending))
            torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_commit(ops: OpTable, shape: GatedDeltaShape) -> None:
    """In all layers; what does not count is not looked at."""
    case = GatedDeltaCase.random(shape, 0)
    where, counts = torch.tensor([4, 0, 1]), torch.tensor([2, 3, 0])
    pending = no_rows(case, 3, torch.float64)
    for slot, count in ((4, 2), (0, 3)):
        for seed, field in enumerate(fields(pending)):
            tensor = getattr(pending, field.name)[slot, :, :count]
            tensor[:] = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
    pending.log_decays[:] = -pending.log_decays.abs().cumsum(2)
    conv, recurrent = case.conv.float(), case.recurrent.float()
    mine = GatedDeltaPending(*(getattr(pending, field.name).float() for field in fields(pending)))
    ops.gated_delta_commit(conv, recurrent, mine, where, counts, shape)
    reference.gated_delta_commit(case.conv, case.recurrent, pending, where, counts, shape)
    check_states(conv, recurrent, case.conv, case.recurrent)
    assert torch.equal(recurrent[[1, 2, 3, 5]], GatedDeltaCase.random(shape, 0).recurrent[[1, 2, 3, 5]].float())


@pytest.mark.parametrize("accepted", range(5))
def test_accepted_rows_of_the_reference_are_tokens(accepted: int) -> None:
    """A round, a commit and one more token, against the accepted tokens and that one in a row."""
    shape = SHAPES[1]
    rounds, steps = GatedDeltaCase.random(shape, 5), GatedDeltaCase.random(shape, 5)
    slot, none, counts = torch.tensor([3]), torch.tensor([0]), torch.tensor([accepted])
    states, pending = (rounds.conv, rounds.recurrent), no_rows(rounds, 4, torch.float64)
    rows, last = rounds.projected[:4], rounds.projected[4:]
    out = reference.gated_delta_round(rows, rounds.weights, *states, pending, 1, slot, none, shape)
    assert torch.equal(states[1], steps.recurrent)
    pending.log_decays[:, 0] = pending.inputs[:, 0] = pending.keys[:, 0] = pending.deltas[:, 0] = 0
    reference.gated_delta_commit(*states, pending, slot, counts, shape)
    found = reference.gated_delta_decode(last, rounds.weights, *states, 1, slot, shape)
    tokens = torch.cat([rows[:accepted], last])
    expected = reference.gated_delta_prefill(tokens, steps.weights, steps.conv, steps.recurrent, 1, slot, shape)
    torch.testing.assert_close(torch.cat([out[:accepted], found]), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(states[1][:, 1], steps.recurrent[:, 1], atol=1e-12, rtol=1e-12)
    assert torch.equal(states[0][:, 1], steps.conv[:, 1])


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_a_bfloat16_conv_state_is_rounded_once(ops: OpTable, tokens: int) -> None:
    shape = SHAPES[1]
    case = GatedDeltaCase.random(shape, tokens)
    conv, recurrent, slot = case.conv.bfloat16(), case.recurrent.float(), torch.tensor([4])
    expected_conv = conv.double()
    weights = converted(case.weights, torch.float32)
    run = ops.gated_delta_prefill if tokens > 1 else ops.gated_delta_decode
    out = run(case.projected.float(), weights, conv, recurrent, 0, slot, shape)
    expected = reference.gated_delta_prefill(
        case.projected, case.weights, expected_conv, case.recurrent, 0, slot, shape
    )
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)
    check_states(conv, recurrent, expected_conv, case.recurrent)


def test_strong_and_weak_decay(ops: OpTable) -> None:
    """Decays from nearly one to zero within one chunk neither overflow nor produce NaN."""
    shape = SHAPES[1]
    case = GatedDeltaCase.random(shape, 130)
    case.projected[:, -shape.value_heads :] *= 200
    recurrent, slot = case.recurrent.float(), torch.tensor([0])
    weights = converted(case.weights, torch.float32)
    out = ops.gated_delta_prefill(case.projected.float(), weights, case.conv.float(), recurrent, 0, slot, shape)
    expected = reference.gated_delta_prefill(case.projected, case.weights, case.conv, case.recurrent, 0, slot, shape)
    torch.testing.assert_close(out.double(), expected, atol=5e-4, rtol=1e-3)
