"""A small engine over the hash model, with a scripted clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.engine.engine import Engine
from ninferd.engine.messages import (
    EngineInfo,
    GenerationRequest,
    PromptIdentity,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokensGenerated,
)
from ninferd.memory.geometry import pages_for
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from tests.engine.hash_model import KV, STATE, VOCAB, HashModel

GREEDY = SamplingParams(seed=0, temperature=0.0)


@dataclass
class Clock:
    """Seconds, moved by the test."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Outcome:
    """What the client of one request saw."""

    tokens: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)  # number of the step that emitted each token
    events: list[RequestEvent] = field(default_factory=list)

    @property
    def end(self) -> RequestFinished | RequestFailed:
        last = self.events[-1]
        assert isinstance(last, (RequestFinished, RequestFailed)), last
        return last

    @property
    def reason(self) -> str:
        """Finish reason or failure code."""
        return self.end.reason if isinstance(self.end, RequestFinished) else self.end.code


class Rig:
    """Engine, model and clock; every step is followed by the invariant checks."""

    def __init__(
        self, *, lanes: int = 4, pages: int = 16, max_context: int = 512, prefill_chunk: int = 64, vocab: int = VOCAB
    ) -> None:
        cpu = torch.device("cpu")
        self.clock = Clock()
        self.model = HashModel()
        self.kv = KVCache(KV, pages, lanes, pages_for(max_context), cpu)
        self.state = StateCache(STATE, lanes, cpu, torch.float32)
        info = EngineInfo(
            model_name="hash",
            architecture="hash",
            device="cpu",
            weights_dtype="float32",
            kv_dtype="fp32",
            vocab_size=vocab,
            max_context=max_context,
            max_concurrency=lanes,
            kv_capacity_tokens=pages * PAGE_TOKENS,
            page_tokens=PAGE_TOKENS,
            state_slots=lanes,
            weights_bytes=0,
            kv_bytes=0,
            state_bytes=0,
            load_seconds=0.0,
        )
        self.engine = Engine(self.model, self.kv, self.state, info, prefill_chunk, self.clock)
        self.outcomes: dict[str, Outcome] = {}
        self.steps = 0

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        sampling: SamplingParams = GREEDY,
        stop: tuple[int, ...] = (),
        timeout_ms: int | None = None,
    ) -> Outcome:
        self.engine.submit(
            GenerationRequest(request_id, PromptIdentity.from_token_ids(prompt), sampling, max_tokens, stop, timeout_ms)
        )
        self.outcomes[request_id] = Outcome()
        return self.outcomes[request_id]

    def step(self) -> list[RequestEvent]:
        events = self.engine.step()
        for event in events:
            outcome = self.outcomes[event.request_id]
            assert not outcome.events or not isinstance(outcome.events[-1], (RequestFinished, RequestFailed))
            outcome.events.append(event)
            if isinstance(event, TokensGenerated):
                outcome.tokens += event.token_ids
                outcome.token_steps += [self.steps] * len(event.token_ids)
        self.steps += 1
        self.engine.check()
        return events

    def drain(self, limit: int = 10_000) -> None:
        """Step until there is no work."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {self.engine.stats()}")

    def assert_empty(self) -> None:
        """Nothing leaked."""
        stats = self.engine.stats()
        assert (stats.waiting, stats.prefilling, stats.decoding) == (0, 0, 0)
        assert (stats.pages_used, stats.state_slots_used) == (0, 0)
        assert self.kv.pool.available == self.kv.pool.capacity
        assert self.kv.pool.census().free_runs == 1


def prompt_of(length: int, salt: int) -> list[int]:
    """A deterministic prompt without the poison token."""
    return [(7 * index + 13 * salt + index * index * salt) % (VOCAB - 1) for index in range(length)]
