"""The gated delta rule against the float64 token recurrence."""

from __future__ import annotations

import pytest
import torch

from kernels_numba import reference
from kernels_numba.ops import OpTable
from kernels_numba.shapes import GatedDeltaShape
from tests.kernels_numba.inputs import GatedDeltaCase, converted

SHAPES = [
    GatedDeltaShape(key_heads=2, value_heads=4, key_dim=128, value_dim=128, conv_kernel=4),
    GatedDeltaShape(key_heads=1, value_heads=3, key_dim=16, value_dim=16, conv_kernel=4),
    GatedDeltaShape(key_heads=2, value_heads=2, key_dim=10, value_dim=7, conv_kernel=2),
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
