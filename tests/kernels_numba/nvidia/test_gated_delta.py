"""The gated delta rule as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.nvidia import gated_delta_step
from kernels_numba.nvidia.gated_delta_layout import DIM, STEP_WARPS, TAPS, step_shared_bytes
from kernels_numba.shapes import GatedDeltaShape, GatedDeltaWeights
from tests.kernels_numba.inputs import GatedDeltaCase, converted
from tests.kernels_numba.nvidia.emulator import launch

SHAPE = GatedDeltaShape(key_heads=1, value_heads=2, key_dim=DIM, value_dim=DIM, conv_kernel=TAPS)
LAYER = 1


def states(case: GatedDeltaCase) -> tuple[Tensor, Tensor]:
    return case.conv.bfloat16(), case.recurrent.float()


def pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def check(found: Tensor, expected: Tensor, bound: float) -> None:
    """By the norm of the difference."""
    assert (found.double() - expected).norm() <= bound * expected.norm()


def step(
    splits: int, tokens: int, projected: Tensor, weights: GatedDeltaWeights, conv: Tensor, state: Tensor, slots: Tensor
) -> Tensor:
    sequences, rows = slots.shape[0], projected.shape[0]
    out = torch.full((rows, SHAPE.value_width), torch.nan).bfloat16()
    partial = torch.full((rows, SHAPE.value_width), torch.nan)
    counters = [torch.zeros(sequences, heads, dtype=torch.int32) for heads in (SHAPE.key_heads, SHAPE.value_heads)]
    small = [weights.conv, weights.decay_rate, weights.dt_bias, weights.norm]
    launch(
        gated_delta_step.source(splits),
        (splits * SHAPE.value_heads, sequences, 1),
        32 * STEP_WARPS,
        [
            *pointers(projected, conv[:, LAYER], state[:, LAYER], slots, *small, partial, *counters, out),
            *(2 * projected.stride(0), 2 * conv.stride(0), 4 * state.stride(0)),
            *(tokens, SHAPE.key_heads, SHAPE.value_heads, SHAPE.value_heads // SHAPE.key_heads),
            np.float32(weights.eps),
        ],
        [projected, conv, state, slots, *small, partial, *counters, out],
        shared_bytes=step_shared_bytes(splits),
        order=lambda blocks: random.Random(splits).sample(blocks, len(blocks)),
    )
    assert not any(counter.any() for counter in counters)
    return out


@pytest.mark.parametrize(("splits", "slots", "tokens"), [(2, [3, 0], 1), (4, [5], 3)], ids=str)
def test_steps(splits: int, slots: list[int], tokens: int) -> None:
    case = GatedDeltaCase.random(SHAPE, len(slots) * tokens)
    (conv, state), weights = states(case), converted(case.weights, torch.float32)
    projected = case.projected.bfloat16()
    projected[0, -SHAPE.value_heads :] = torch.tensor([-30.0, 60.0])  # hardly any and nothing but decay
    exact = converted(weights, torch.float64)
    expected_conv, expected_state = conv.double(), state.double()
    out = step(splits, tokens, projected, weights, conv, state, torch.tensor(slots))
    rows = projected.double().view(len(slots), tokens, -1)
    expected = [
        reference.gated_delta_prefill(r, exact, expected_conv, expected_state, LAYER, torch.tensor([slot]), SHAPE)
        for r, slot in zip(rows, slots, strict=True)
    ]
    check(out, torch.cat(expected), 2e-3)
    assert torch.equal(conv.double(), expected_conv)
    check(state, expected_state, 1e-7)


def test_a_broken_state_stays_in_its_sequence() -> None:
    case = GatedDeltaCase.random(SHAPE, 2)
    (conv, state), weights = states(case), converted(case.weights, torch.float32)
    state[3] = torch.nan
    out = step(4, 1, case.projected.bfloat16(), weights, conv, state, torch.tensor([3, 0]))
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
    assert state[0].isfinite().all()
