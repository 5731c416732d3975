"""Captured rounds of several rows per sequence, of which some are rejected, against tokens that come one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ninferd.benchmarks.rehearsal import pending_rows
from ninferd.engine.graphs import DecodeRounds, Graphs
from ninferd.engine.step_inputs import Ints, StepInputs
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.batch import Caches
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.opening import open_model
from tests.support.caches import make_caches
from tests.support.recorded_graphs import CAPTURABLE_OPS, RecordedGraphs

ROWS = 3
PROMPTS = (62, 5)
"""The first lane crosses a page at once."""


class Lanes:
    """Two sequences over one model, driven as an engine that verifies drafts would."""

    def __init__(self, model: Qwen3_5Text, graphs: Graphs | None) -> None:
        self._model = model
        kv, state = make_caches(model, 2, 16, 320, "fp32")
        pending = pending_rows(model.config.gated_delta, state.conv)
        self._caches = Caches(kv.paged, state.conv, state.recurrent, pending)
        self._inputs = StepInputs(kv, 256)
        self.rounds = DecodeRounds(self._round, graphs)
        self._slots, self._rows, self._spaces = [], [], []
        self.processed = np.array(PROMPTS)
        for lane, length in enumerate(PROMPTS):
            space, slot = kv.open(300), state.acquire()
            assert space is not None
            assert slot is not None
            self._spaces.append(space)
            self._rows.append(space.row)
            self._slots.append(slot.index)
            space.ensure_mapped(length)
            prompt = np.random.default_rng(lane).integers(0, 500, length)
            one = np.array([space.row]), np.array([slot.index]), np.array([length]), np.array([], np.int64)
            self._inputs.load(prompt, np.arange(length), *one)
            self._model.forward(self._inputs.prefill(length, length, want_logits=False), self._caches)

    def run(self, tokens: Ints, accepted: Ints, lanes: tuple[int, ...] = (0, 1)) -> Tensor:
        """Logits [S, T, V] of ``tokens`` [S, T] behind what ``lanes`` have processed."""
        count, chosen = tokens.shape[1], list(lanes)
        first = self.processed[chosen]
        for lane, start in zip(chosen, first, strict=True):
            self._spaces[lane].ensure_mapped(int(start) + count)
        positions = (first[:, None] + np.arange(count)).reshape(-1)
        places = np.array(self._rows)[chosen], np.array(self._slots)[chosen]
        more = {"accepted": accepted} if count > 1 else {}
        self._inputs.load(tokens.reshape(-1), positions, *places, first + count, np.arange(tokens.size), **more)
        logits = self.rounds((len(chosen), count))
        return logits.view(len(chosen), count, -1).clone()

    def _round(self, shape: tuple[int, int]) -> Tensor:
        return self._model.forward(self._inputs.decode(*shape), self._caches)


@torch.inference_mode()
def test_rows_that_are_rejected_leave_no_trace(checkpoint: Path) -> None:
    source = open_model(checkpoint)
    device = torch.device("cpu")
    model = load_text(source, text_config(source), CAPTURABLE_OPS, device, torch.float32, lambda done, total: None)
    replayed, plain, single = Lanes(model, RecordedGraphs()), Lanes(model, None), Lanes(model, None)
    random = np.random.default_rng(7)
    accepted = np.array([0, 0])
    for _ in range(8):
        tokens = random.integers(0, 500, (2, ROWS))
        found = replayed.run(tokens, accepted)
        assert torch.equal(found, plain.run(tokens, accepted))
        accepted = random.integers(1, ROWS + 1, 2)
        for lanes in (replayed, plain):
            lanes.processed = lanes.processed + accepted
        for lane, count in enumerate(accepted.tolist()):
            for row in range(count):
                expected = single.run(tokens[lane : lane + 1, row : row + 1], accepted, (lane,))
                single.processed[lane] += 1
                torch.testing.assert_close(found[lane, row], expected[0, 0], atol=1e-4, rtol=1e-4)
    assert replayed.rounds.captured == ((2, ROWS),)
