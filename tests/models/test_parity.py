"""The text model against Hugging Face transformers on random weights."""

from __future__ import annotations

import copy

import pytest
import torch

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.support.models import SavedModel, prompt_tokens, transformers_greedy, transformers_logits
from tests.support.sequences import Runner

CPU = torch.device("cpu")
PROMPT_TOKENS = 150  # two whole chunks of 64 tokens and a partial one
GREEDY_TOKENS = 200


@pytest.fixture(params=[CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
def ops(request: pytest.FixtureRequest) -> OpTable:
    table: OpTable = request.param
    return table


def test_all_logits_match(saved: SavedModel, ops: OpTable) -> None:
    tokens = prompt_tokens(PROMPT_TOKENS)
    logits = Runner.create(saved.load(ops, CPU), 1, PROMPT_TOKENS).step({0: tokens}, all_logits=True)
    error = (logits - transformers_logits(saved.transformers_model, tokens)).abs().amax(1)
    assert error.median() < 2e-5
    # Now and then a random model normalises a vector that is nearly zero, and float32 shows in any implementation.
    assert error.max() < 5e-4


def test_greedy_tokens_are_identical(saved: SavedModel) -> None:
    prompt = prompt_tokens(PROMPT_TOKENS)
    expected, smallest_gap = transformers_greedy(saved.transformers_model, prompt, GREEDY_TOKENS)
    assert smallest_gap > 1e-4, "the two best logits are too close for a comparison of tokens: take another seed"
    runner = Runner.create(saved.load(CPU_OPS, CPU), 1, PROMPT_TOKENS + GREEDY_TOKENS)
    assert runner.greedy(0, prompt, GREEDY_TOKENS) == expected


def test_bfloat16_is_no_further_off_than_transformers(saved: SavedModel) -> None:
    tokens = prompt_tokens(PROMPT_TOKENS)
    exact = transformers_logits(saved.transformers_model, tokens)
    theirs = transformers_logits(copy.deepcopy(saved.transformers_model).bfloat16(), tokens).float()
    runner = Runner.create(saved.load(TORCH_OPS, CPU, torch.bfloat16), 1, PROMPT_TOKENS, "bf16")
    ours = runner.step({0: tokens}, all_logits=True)
    assert ours.dtype == torch.float32
    assert 0 < (ours - exact).norm() < 1.2 * (theirs - exact).norm()
