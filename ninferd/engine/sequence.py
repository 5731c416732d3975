"""One request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninferd.engine.messages import GenerationRequest, RequestTimings
from ninferd.memory.geometry import pages_for
from ninferd.memory.kv_cache import AddressSpace
from ninferd.memory.state import StateSlot


@dataclass(frozen=True)
class Entitlement:
    """All that a request may ever use (spec/memory §2.6); reserved whole when it is admitted."""

    output_tokens: int
    cache_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, max_tokens: int, max_context: int) -> Entitlement:
        """Output bounded by the context; the last sampled token never needs a cache position."""
        output = min(max_tokens, max_context - prompt_tokens + 1)
        return cls(output, prompt_tokens + max(0, output - 1))

    @property
    def pages(self) -> int:
        """Pages for the cache positions."""
        return pages_for(self.cache_tokens)


@dataclass(frozen=True)
class Lane:
    """What an admitted sequence holds on the device."""

    space: AddressSpace
    slot: StateSlot

    @property
    def row(self) -> int:
        """Page table row, also the row of per-lane sampling state."""
        return self.space.row


@dataclass(eq=False, slots=True)
class Sequence:
    """Mutable state from submission to the terminal event. Times are seconds of the engine's monotonic clock."""

    request: GenerationRequest
    prompt: npt.NDArray[np.int64]
    entitlement: Entitlement
    submitted_s: float
    deadline_s: float | None
    stop_tokens: frozenset[int] = field(init=False)
    lane: Lane | None = None
    processed: int = 0  # execution frontier: tokens whose keys, values and state are in the caches
    generated: int = 0
    last_token: int = -1
    admitted_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float = 0.0

    def __post_init__(self) -> None:
        self.stop_tokens = frozenset(self.request.stop_token_ids)

    @property
    def request_id(self) -> str:
        """The client side's name of the request."""
        return self.request.request_id

    @property
    def held(self) -> Lane:
        """The lane of an admitted sequence."""
        assert self.lane is not None
        return self.lane

    @property
    def queue_ms(self) -> float:
        """Submission to admission."""
        return (self.admitted_s - self.submitted_s) * 1e3

    def timings(self) -> RequestTimings:
        """Phases as of now; phases that have not ended are zero."""
        if self.lane is None:
            return RequestTimings()
        first_s = self.first_token_s
        return RequestTimings(
            queue_ms=self.queue_ms,
            prefill_ms=0.0 if first_s is None else (first_s - self.admitted_s) * 1e3,
            decode_ms=0.0 if first_s is None else (self.last_token_s - first_s) * 1e3,
            prefill_tokens=min(self.processed, len(self.prompt)),
            generated_tokens=self.generated,
        )
