"""Random traces of submissions, cancellations, deadlines and injected errors; invariants after every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ninferd.engine.messages import SamplingParams
from ninferd.models.batch import Batch
from tests.engine.hash_model import POISON, expected_tokens
from tests.engine.rig import GREEDY, Rig, prompt_of

ERRORS: dict[str, Callable[[], Exception]] = {
    "out of memory": partial(torch.OutOfMemoryError, "CUDA out of memory"),
    "failure": partial(RuntimeError, "injected"),
}
REASONS = {"length", "cancelled", "queue_timeout", "engine_error", "capacity_impossible", "prompt_too_long"}


class EngineTrace(RuleBasedStateMachine):
    """An engine with 3 lanes and 12 pages under everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(lanes=3, pages=12, max_context=640, prefill_chunk=64)
        self.requests: dict[str, tuple[list[int], int]] = {}
        self.greedy: set[str] = set()

    @rule(
        length=st.integers(0, 700),
        max_tokens=st.integers(0, 150),
        timeout_ms=st.sampled_from([None, 50, 5000]),
        flavour=st.sampled_from(["greedy", "greedy", "sampled", "poisoned"]),
    )
    def submit(self, length: int, max_tokens: int, timeout_ms: int | None, flavour: str) -> None:
        name = f"r{len(self.requests)}"
        prompt = prompt_of(length, len(self.requests))
        if flavour == "poisoned" and prompt:
            prompt[len(prompt) // 2] = POISON
        sampling = SamplingParams(seed=5, top_k=10, presence_penalty=0.1) if flavour == "sampled" else GREEDY
        self.requests[name] = (prompt, max_tokens)
        if flavour == "greedy":
            self.greedy.add(name)
        self.rig.submit(name, prompt, max_tokens, sampling=sampling, timeout_ms=timeout_ms)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        self.rig.engine.cancel(name)

    @rule(seconds=st.sampled_from([0.01, 0.1, 6.0]))
    def wait(self, seconds: float) -> None:
        self.rig.clock.now_s += seconds

    @rule(count=st.integers(1, 40))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.rig.step()

    @rule(kind=st.sampled_from(sorted(ERRORS)), halfway=st.booleans())
    def run_into_an_error(self, kind: str, halfway: bool) -> None:
        def inject(batch: Batch) -> None:
            self.rig.model.before_step = self.rig.model.after_writes = lambda _batch: None
            raise ERRORS[kind]()

        self.rig.clock.now_s += 31.0  # errors far apart do not break the engine
        if halfway:
            self.rig.model.after_writes = inject
        else:
            self.rig.model.before_step = inject
        self.rig.step()
        self.rig.model.before_step = self.rig.model.after_writes = lambda _batch: None

    def teardown(self) -> None:
        self.rig.drain()
        self.rig.assert_empty()
        for name, outcome in self.rig.outcomes.items():
            prompt, max_tokens = self.requests[name]
            if not prompt:
                assert outcome.reason == "invalid_request"
                continue
            assert outcome.reason in REASONS
            if name in self.greedy:  # whatever ended it, its tokens are a prefix of its solo run
                assert outcome.tokens == expected_tokens(prompt, len(outcome.tokens))
            if outcome.reason == "length":
                assert len(outcome.tokens) == min(max_tokens, 641 - len(prompt))
        stats = self.rig.engine.stats()
        assert stats.requests_finished + stats.requests_failed + stats.requests_cancelled == len(self.requests)


EngineTrace.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_traces = EngineTrace.TestCase
