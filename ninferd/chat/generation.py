"""One generation: engine events in, typed pieces of the answer out.

Streaming and aggregate answers of every protocol are made from these events; there is no second path.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from ninferd.chat.errors import GenerationFailedError
from ninferd.chat.frontend import ChatFrontend, PreparedPrompt
from ninferd.chat.output import AnswerDelta, OutputReader, merged
from ninferd.chat.tool_calls import FallbackReason
from ninferd.engine.client import EngineClient
from ninferd.engine.messages import (
    GenerationRequest,
    PrefillProgress,
    RequestAdmitted,
    RequestFailed,
    RequestFinished,
    RequestTimings,
    SamplingParams,
    TokensGenerated,
)

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class GenerationPlan:
    """Everything decided about one answer before it is queued."""

    request_id: str
    prompt: PreparedPrompt
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    first_call_only: bool = False  # end the answer with its first complete tool call

    def request(self, frontend: ChatFrontend, pending_timeout_ms: int | None) -> GenerationRequest:
        """``frontend`` is the one that prepared the prompt."""
        return GenerationRequest(
            request_id=self.request_id,
            prompt=self.prompt.identity,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop_token_ids=frontend.stop_token_ids,
            pending_timeout_ms=pending_timeout_ms,
            model_identity=frontend.model_identity,
        )


@dataclass(frozen=True)
class Usage:
    """Tokens of one request; ``completion_tokens`` counts a withheld stop token too."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True)
class Finish:
    """Last event of a successful generation. ``fallback``: why tool markup was returned as text."""

    reason: FinishReason
    usage: Usage
    timings: RequestTimings
    fallback: FallbackReason | None


GenerationEvent = RequestAdmitted | PrefillProgress | AnswerDelta | Finish


class Generation:
    """Runs one plan. ``events`` may be iterated once; closing it cancels the request in the engine."""

    def __init__(self, engine: EngineClient, frontend: ChatFrontend, plan: GenerationPlan) -> None:
        self._engine = engine
        self._frontend = frontend
        self._plan = plan
        self._output = OutputReader(frontend, plan.prompt, stop=plan.stop, first_call_only=plan.first_call_only)
        self._timings = RequestTimings()
        self._cached_tokens = 0

    @property
    def timings(self) -> RequestTimings:
        """As of the last tokens; hidden tokens advance it too."""
        return self._timings

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._plan.prompt),
            cached_tokens=self._cached_tokens,
            completion_tokens=self._output.tokens,
            reasoning_tokens=self._output.reasoning_tokens,
        )

    async def events(self, pending_timeout_ms: int | None = None) -> AsyncGenerator[GenerationEvent, None]:
        """Admission, progress and deltas in order, then exactly one Finish; raises GenerationFailedError.

        ``pending_timeout_ms`` is what is left of the deadline for admission.
        """
        request = self._plan.request(self._frontend, pending_timeout_ms)
        async with aclosing(self._engine.generate(request)) as engine_events:
            async for event in engine_events:
                if isinstance(event, RequestFailed):
                    raise GenerationFailedError(event.code, event.message)
                if isinstance(event, RequestFinished):
                    if event.reason == "cancelled":
                        raise GenerationFailedError(
                            "unavailable", "the server ended this answer before it was complete"
                        )
                    self._timings = event.timings
                    for piece in self._finish("length" if event.reason == "length" else "stop"):
                        yield piece
                    return
                if isinstance(event, TokensGenerated):
                    for delta in self._read(event):
                        yield delta
                    if self._output.complete:
                        for piece in self._finish("stop"):
                            yield piece
                        return
                else:
                    self._cached_tokens = event.cached_tokens
                    yield event
        raise GenerationFailedError("unavailable", "the engine ended this answer without saying why")

    def _read(self, event: TokensGenerated) -> list[AnswerDelta]:
        self._timings = event.timings
        self._cached_tokens = event.timings.cached_tokens
        logprobs = event.logprobs or (None,) * len(event.token_ids)
        deltas: list[AnswerDelta] = []
        for token_id, logprob in zip(event.token_ids, logprobs, strict=True):
            if self._output.complete:
                break  # tokens after a stop string were computed but are not part of the answer
            deltas.extend(self._output.push(token_id, logprob))
        return merged(deltas)

    def _finish(self, reason: Literal["stop", "length"]) -> list[AnswerDelta | Finish]:
        ending = self._output.finish()
        final: FinishReason = "tool_calls" if ending.has_calls and reason == "stop" else reason
        return [*ending.deltas, Finish(final, self.usage, self._timings, ending.fallback)]
