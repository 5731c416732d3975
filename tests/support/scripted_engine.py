"""An ``EngineClient`` that replays written-down tokens, for tests of everything above the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import msgspec

from kernels_numba.report import Check, GroupReport, OpsReport, VariantReport
from ninferd.engine.client import EngineState
from ninferd.engine.messages import (
    EngineInfo,
    EngineStats,
    FailureCode,
    FinishReason,
    GenerationRequest,
    PrefillProgress,
    RequestAdmitted,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    RequestTimings,
    TokenLogprob,
    TokenLogprobs,
    TokensGenerated,
)

INFO = EngineInfo(
    model_name="ninfer-tiny",
    architecture="Qwen3_5ForCausalLM",
    device="cpu",
    weights_dtype="float32",
    kv_dtype="fp32",
    vocab_size=4096,
    max_context=2048,
    max_concurrency=2,
    kv_capacity_tokens=4096,
    page_tokens=64,
    state_slots=2,
    weights_bytes=1000,
    kv_bytes=2000,
    state_bytes=3000,
    load_seconds=1.5,
    ops=OpsReport(
        "cuda",
        "sm_90",
        (
            GroupReport(
                "norms",
                ("rms_norm", "silu_mul"),
                "cuda",
                9,
                Check("silu_mul", 1.7e-3, 4e-3),
                12.5,
                variants=(VariantReport("wide_norms", serves=False, fallback_reason="CudaError: wide_norms"),),
            ),
            GroupReport("linear", ("linear",), "torch", fallback_reason="CudaError: gemv_q8_m4"),
        ),
    ),
)
STATS = EngineStats(
    steps=10,
    waiting=1,
    prefilling=2,
    decoding=3,
    pages_total=64,
    pages_used=5,
    state_slots_total=2,
    state_slots_used=1,
    requests_finished=7,
    requests_failed=1,
    requests_cancelled=2,
    prompt_tokens=100,
    cached_tokens=30,
    generated_tokens=50,
)


@dataclass
class Script:
    """What the engine does with one request.

    ``admit`` and ``decode`` are gates: admission, and every token after the first ``free_tokens``, wait for them.
    """

    token_ids: Sequence[int] = ()
    reason: FinishReason = "stop"
    tokens_per_event: int = 1
    cached_tokens: int = 0
    prefill_chunks: int = 0
    failure: FailureCode | None = None
    fail_after_tokens: int = 0
    crash: Exception | None = None
    admit: asyncio.Event | None = None
    decode: asyncio.Event | None = None
    free_tokens: int = 0


@dataclass
class ScriptedEngine:
    """Plays ``scripts`` in the order of the requests; the last one is repeated."""

    scripts: list[Script]
    state: EngineState = "ready"
    info: EngineInfo | None = INFO
    stats: EngineStats | None = STATS
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wait_requests(self, count: int = 1) -> None:
        """Until that many requests have arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def wait_cancelled(self, count: int = 1) -> None:
        """Until that many requests were cancelled."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.cancelled) >= count)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        request = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest)  # it crosses a socket
        async with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        ended = False
        try:
            async for event in self._play(script, request):
                ended = isinstance(event, (RequestFinished, RequestFailed))
                yield event
        finally:
            if not ended:
                async with self._changed:
                    self.cancelled.append(request.request_id)
                    self._changed.notify_all()

    async def _play(self, script: Script, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        name, total = request.request_id, len(request.prompt)
        if script.admit is not None:
            await script.admit.wait()
        if script.crash is not None:
            raise script.crash
        if script.failure is not None and not script.fail_after_tokens:
            yield RequestFailed(name, script.failure, "scripted failure")
            return
        yield RequestAdmitted(name, script.cached_tokens, queue_ms=2.0)
        for chunk in range(1, script.prefill_chunks + 1):
            processed = script.cached_tokens + (total - script.cached_tokens) * chunk // script.prefill_chunks
            yield PrefillProgress(name, processed, total, script.cached_tokens, elapsed_ms=float(chunk))
        token_ids = script.token_ids[: request.max_tokens]
        for start in range(0, len(token_ids), script.tokens_per_event):
            if script.decode is not None and start >= script.free_tokens:
                await script.decode.wait()
            batch = tuple(token_ids[start : start + script.tokens_per_event])
            generated = start + len(batch)
            logprobs = None
            if request.sampling.top_logprobs is not None:
                logprobs = tuple(_logprobs(token_id, request.sampling.top_logprobs) for token_id in batch)
            yield TokensGenerated(name, batch, logprobs, _timings(script, total, generated))
            if script.failure is not None and generated >= script.fail_after_tokens:
                yield RequestFailed(name, script.failure, "scripted failure")
                return
        cut = len(token_ids) < len(script.token_ids)
        timings = _timings(script, total, len(token_ids))
        yield RequestFinished(name, "length" if cut else script.reason, timings)


def _timings(script: Script, prompt_tokens: int, generated: int) -> RequestTimings:
    """20 ms of prefill and 10 ms per further token."""
    return RequestTimings(
        queue_ms=2.0,
        prefill_ms=20.0,
        decode_ms=10.0 * max(generated - 1, 0),
        prefill_tokens=prompt_tokens - script.cached_tokens,
        cached_tokens=script.cached_tokens,
        generated_tokens=generated,
    )


def _logprobs(token_id: int, count: int) -> TokenLogprobs:
    chosen = TokenLogprob(token_id, -0.25)
    others = (TokenLogprob((token_id + rank) % 4000, -1.0 - rank) for rank in range(1, count))
    return TokenLogprobs(chosen, (chosen, *others) if count else ())
