"""Rounds whose rows may be rejected: after any number accepted, as if those tokens had come one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from kernels_numba.shapes import GatedDeltaPending
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model
from tests.support.models import SavedModel, prompt_tokens
from tests.support.sequences import Runner

CPU = torch.device("cpu")
TOLERANCE = 5e-4
"""Of logits in float32 between two orders of summation."""
WRONG = 7
"""A token that nobody would draft."""
ROUNDS = [(4, 2), (4, 4), (1, 1), (3, 1), (5, 3), (2, 2)]
"""Rows of a round, and how many of them are accepted."""


class Rounds:
    """Sequences that take rounds of rows, which are rejected from some row on."""

    def __init__(self, runner: Runner, rows: int = 5) -> None:
        self.runner = runner
        gdn, (slots, layers) = runner.model.config.gated_delta, runner.caches.recurrent.shape[:2]
        sizes = [(gdn.conv_channels,), (gdn.key_heads, gdn.key_dim), (gdn.value_heads, gdn.value_dim)]
        pending = [torch.full((slots, layers, rows, *size), torch.nan) for size in [*sizes, (gdn.value_heads,)]]
        runner.caches = replace(runner.caches, pending=GatedDeltaPending(*pending))
        self.accepted = torch.zeros(len(runner.sequences), dtype=torch.int64)

    def __call__(self, rows: list[list[int]], accepted: list[int]) -> Tensor:
        """Logits of all rows, [sequences, rows, vocabulary]; then so many of them are accepted."""
        batch = self.runner.batch(dict(enumerate(rows)), all_logits=True)
        batch = replace(batch, host_context_lengths=None, accepted=self.accepted)
        logits = self.runner.model.forward(batch, self.runner.caches)
        for sequence, count in zip(self.runner.sequences, accepted, strict=True):
            sequence.length += count
        self.accepted = torch.tensor(accepted)
        return logits.view(len(rows), len(rows[0]), -1)

    def settle(self) -> None:
        """Nothing is pending afterwards."""
        caches, gdn = self.runner.caches, self.runner.model.config.gated_delta
        assert caches.pending is not None
        slots = torch.tensor([sequence.slot for sequence in self.runner.sequences])
        ops = self.runner.model.ops
        ops.gated_delta_commit(caches.conv, caches.recurrent, caches.pending, slots, self.accepted, gdn)
        self.accepted = torch.zeros_like(self.accepted)


def check(model: Qwen3_5Text) -> None:
    """Two sequences, of which the second accepts one row fewer where there are several."""
    texts = [prompt_tokens(60), prompt_tokens(50)[::-1]]
    prompts = {0: texts[0][:20], 1: texts[1][:9]}
    singly = [Runner.create(model, 1, 100, seed=seed) for seed in range(2)]
    for index, runner in enumerate(singly):
        runner.step({0: prompts[index]})
    together = Runner.create(model, 2, 100)
    together.step(prompts)
    rounds = Rounds(together)
    for rows, most in ROUNDS:
        accepted = [most, max(1, most - 1)]
        starts = [sequence.length for sequence in together.sequences]
        drafts = [
            [*text[start : start + count], *[WRONG] * (rows - count)]
            for text, start, count in zip(texts, starts, accepted, strict=True)
        ]
        logits = rounds(drafts, accepted)
        for index, runner in enumerate(singly):
            for row in range(accepted[index]):
                expected = runner.step({0: drafts[index][row : row + 1]})[0]
                torch.testing.assert_close(logits[index, row], expected, atol=TOLERANCE, rtol=0)
                assert int(logits[index, row].argmax()) == int(expected.argmax())
    rounds.settle()
    for index, runner in enumerate(singly):  # prefill goes on from there, and so do single tokens
        for tokens in ([1, 2, 3], [4]):
            found, expected = together.step({index: tokens}), runner.step({0: tokens})
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("ops", [CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
def test_rounds_are_single_steps(saved: SavedModel, ops: OpTable) -> None:
    check(saved.load(ops, CPU))


def test_rounds_of_ninfer_tiny_are_single_steps() -> None:
    source = open_model(artifact_path("embedded:ninfer-tiny"))
    check(load_text(source, text_config(source), CPU_OPS, CPU, torch.float32, lambda _done, _total: None))


def test_rows_need_room_and_counts(saved: SavedModel) -> None:
    model = saved.load(TORCH_OPS, CPU)
    runner = Runner.create(model, 1, 20)
    batch = replace(runner.batch({0: [1, 2]}), host_context_lengths=None)
    with pytest.raises(ValueError, match="what was accepted"):
        model.forward(batch, runner.caches)
    with pytest.raises(ValueError, match="room for pending rows"):
        model.forward(replace(batch, accepted=torch.tensor([0])), runner.caches)
