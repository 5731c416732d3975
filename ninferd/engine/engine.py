"""The engine: a synchronous machine that turns submitted requests into events, one bounded step at a time.

``step`` is: expire and cancel, admit, one prefill chunk or one decode round, commit, emit. The caller's thread is the
only mutator, so there is no window between a decision and its act.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import torch

from ninferd.engine.batch import BatchBuilder
from ninferd.engine.failures import EngineBroken, FailureLatch, is_fatal, is_out_of_memory
from ninferd.engine.graphs import DecodeRounds, Graphs, RoundShape
from ninferd.engine.intake import Refusal, prepare
from ninferd.engine.messages import (
    EngineInfo,
    EngineStats,
    FailureCode,
    FinishReason,
    GenerationRequest,
    PrefillProgress,
    PromptIdentity,
    RequestAdmitted,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokensGenerated,
)
from ninferd.engine.sampler import Prepared, Ranked, Sampler
from ninferd.engine.scheduler import DecodeRound, PrefillChunk, Scheduler
from ninferd.engine.sequence import Lane, Sequence
from ninferd.memory.errors import InvariantError
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from ninferd.models.batch import MAX_ROWS, Batch, Caches

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING: Final = 4096  # far above any configured queue; bounds what a faulty caller can pile up


class TextModel(Protocol):
    """What the engine needs of a model."""

    def forward(self, batch: Batch, caches: Caches) -> torch.Tensor:
        """Logits float32 [R, vocab] of the batch's logit rows; appends the batch to the caches."""
        ...


@dataclass
class _Counters:
    """Monotone counters of ``EngineStats``."""

    steps: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True)
class _Following:
    """A decode round whose inputs lie on the device, but for the tokens that the one before feeds it."""

    sequences: tuple[Sequence, ...]
    shape: RoundShape


class Engine:
    """Continuous batching over one model and its caches."""

    def __init__(
        self,
        model: TextModel,
        kv: KVCache,
        state: StateCache,
        info: EngineInfo,
        prefill_chunk: int,
        clock: Callable[[], float] = time.monotonic,
        graphs: Graphs | None = None,
    ) -> None:
        self.info = info
        self._model = model
        self._kv = kv
        self._state = state
        self._caches = Caches(kv=kv.paged, conv=state.conv, recurrent=state.recurrent)
        self._scheduler = Scheduler(kv.pool, info.max_concurrency, prefill_chunk)
        self._batches = BatchBuilder(kv, max(min(prefill_chunk, info.max_context), MAX_ROWS * info.max_concurrency))
        self._sampler = Sampler(info.max_concurrency, info.vocab_size, kv.tensor.device)
        self._rounds = DecodeRounds(self._decode_round, graphs)
        self._following: _Following | None = None
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._cancelled: list[Sequence] = []
        self._events: list[RequestEvent] = []
        self._counters = _Counters()
        self._latch = FailureLatch()

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do or say something."""
        return bool(self._sequences or self._events)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; an impossible one is answered by the next step. ValueError if its id is in use."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        prepared = prepare(request, self.info, self._kv.pool, self._clock())
        if isinstance(prepared, Refusal):
            self._refuse(request, prepared)
        elif len(self._scheduler.waiting) >= MAX_WAITING:
            self._refuse(request, Refusal("unavailable", f"{MAX_WAITING} requests are already waiting"))
        else:
            self._sequences[request.request_id] = prepared
            self._scheduler.enqueue(prepared)

    def cancel(self, request_id: str) -> None:
        """Cancel at the next step; unknown and already ended requests are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._cancelled.append(sequence)

    def cancel_all(self) -> None:
        """Cancel whatever waits or runs."""
        self._cancelled.extend(self._sequences.values())

    @torch.inference_mode()
    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[RequestEvent]:
        """One boundary and at most one unit of work. EngineBroken when only a new process can help.

        ``meanwhile`` is called once: while the device works, where the host then has nothing to do, else at once.
        """
        now_s = self._clock()
        for sequence in self._cancelled:
            if self._sequences.get(sequence.request_id) is sequence:
                self._finish(sequence, "cancelled")
        self._cancelled.clear()
        for sequence in self._scheduler.take_expired(now_s):
            waited_s = now_s - sequence.submitted_s
            self._fail(sequence, "queue_timeout", f"the request waited {waited_s:.1f} s without being admitted")
        self._admit(now_s)
        unit = self._scheduler.next_unit()
        if unit is None:
            meanwhile()
        else:
            self._counters.steps += 1
            self._run(unit, meanwhile)
        return self.drain_events()

    def drain_events(self) -> list[RequestEvent]:
        """Events not yet handed out; after EngineBroken, those of the step that raised it."""
        events, self._events = self._events, []
        return events

    def stats(self) -> EngineStats:
        """Gauges and counters of this moment."""
        scheduler, pool, counters = self._scheduler, self._kv.pool, self._counters
        return EngineStats(
            steps=counters.steps,
            waiting=len(scheduler.waiting),
            prefilling=len(scheduler.prefilling),
            decoding=len(scheduler.decoding),
            pages_total=pool.capacity,
            pages_used=pool.allocated,
            state_slots_total=self._state.capacity,
            state_slots_used=self._state.used,
            requests_finished=counters.requests_finished,
            requests_failed=counters.requests_failed,
            requests_cancelled=counters.requests_cancelled,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            graphs=tuple(map(str, self._rounds.captured)),
            graph_bytes=self._rounds.held_bytes,
        )

    def probe(self) -> None:
        """Answer a tiny request, then zero the counters; EngineBroken if it fails.

        It prefills and decodes twice: the second round of one lane is the one that is captured, where rounds are.
        """
        prompt = PromptIdentity.from_token_ids([0, 0])
        self.submit(GenerationRequest("probe", prompt, SamplingParams(seed=0, temperature=0.0), 3, ()))
        events: list[RequestEvent] = []
        while self.has_work:
            events += self.step()
        last = events[-1]
        if isinstance(last, RequestFailed):
            raise EngineBroken(f"the probe of the loaded model failed: {last.message}")
        self._counters = _Counters()

    def check(self) -> None:
        """Raise InvariantError unless queues, lanes, pages and slots agree."""
        self._kv.check()
        self._state.check()
        active = self._scheduler.active
        known = {id(sequence) for sequence in self._sequences.values()}
        if known != {id(sequence) for sequence in (*self._scheduler.waiting, *active)}:
            raise InvariantError("the scheduler and the table of requests know different sequences")
        if self._state.used != len(active):
            raise InvariantError(f"{self._state.used} state slots held by {len(active)} running sequences")
        entitled = sum(sequence.entitlement.pages for sequence in active)
        if entitled != self._kv.pool.allocated + self._kv.pool.reserved:
            raise InvariantError(f"running sequences are entitled to {entitled} pages, the pool counts others")

    def _admit(self, now_s: float) -> None:
        sequence = self._scheduler.admit()
        if sequence is None:
            return
        space = self._kv.open(sequence.entitlement.cache_tokens)
        slot = self._state.acquire()
        if space is None or slot is None:
            raise EngineBroken("the scheduler admitted a request that does not fit")
        sequence.lane = Lane(space, slot)
        sequence.admitted_s = now_s
        self._sampler.start(space.row, sequence.request.sampling, sequence.prompt)
        self._counters.prompt_tokens += len(sequence.prompt)
        self._events.append(RequestAdmitted(sequence.request_id, cached_tokens=0, queue_ms=sequence.queue_ms))

    def _run(self, unit: PrefillChunk | DecodeRound, meanwhile: Callable[[], None]) -> None:
        """Run one unit. If it raises, its sequences fail: their caches may be half written, so they cannot retry."""
        members = (unit.sequence,) if isinstance(unit, PrefillChunk) else unit.sequences
        if isinstance(unit, PrefillChunk):
            meanwhile()
            self._attempt(members, lambda: self._prefill(unit))
            return
        shape = self._attempt(members, lambda: self._load(members))
        if shape is None:
            meanwhile()
            return
        overlaps = self._rounds.replays(shape)
        if not overlaps:
            meanwhile()
        ranked = self._attempt(members, lambda: self._decode(members, shape))
        if overlaps:
            meanwhile()
        if ranked is not None:
            self._attempt(members, lambda: self._conclude(ranked, members, overlaps))

    def _attempt(self, members: tuple[Sequence, ...], part: Callable[[], T]) -> T | None:
        """A part of a unit; None if it raised, and then ``members`` have failed."""
        try:
            return part()
        except Exception as error:
            logger.exception("step failed, ending %d request(s)", len(members))
            self._recover(error, members)
            return None

    def _prefill(self, chunk: PrefillChunk) -> None:
        sequence = chunk.sequence
        generates = sequence.entitlement.output_tokens > 0
        self._following = None
        batch = self._batches.prefill(chunk, want_logits=chunk.is_last and generates)
        logits = self._model.forward(batch, self._caches)
        sequence.processed = chunk.end
        elapsed_ms = (self._clock() - sequence.admitted_s) * 1e3
        self._events.append(PrefillProgress(sequence.request_id, chunk.end, len(sequence.prompt), 0, elapsed_ms))
        if not chunk.is_last:
            return
        if generates:
            self._scheduler.start_decoding(sequence)
            self._sample(self._sampler.rank(logits), (sequence,))
        else:
            sequence.first_token_s = sequence.last_token_s = self._clock()
            self._finish(sequence, "length")

    def _load(self, sequences: tuple[Sequence, ...]) -> RoundShape:
        """The inputs of their round, unless they lie there since the last one."""
        following, self._following = self._following, None
        if following is not None and following.sequences == sequences:
            return following.shape
        self._batches.load_decode(sequences)
        return self._prepared_shape(sequences)

    def _decode(self, sequences: tuple[Sequence, ...], shape: RoundShape) -> Ranked:
        ranked = self._rounds(shape)
        for sequence in sequences:
            sequence.processed += 1
        return ranked

    def _conclude(self, ranked: Ranked, sequences: tuple[Sequence, ...], overlaps: bool) -> None:
        """While the device works, load the round after this one, should all its sequences go on; then sample."""
        if overlaps and all(each.generated + 1 < each.entitlement.output_tokens for each in sequences):
            self._batches.load_following(sequences)
            self._following = _Following(sequences, self._prepared_shape(sequences, ahead=1))
        self._sample(ranked, sequences)

    def _prepared_shape(self, sequences: tuple[Sequence, ...], ahead: int = 0) -> RoundShape:
        prepared = self._sampler.prepare([each.held.row for each in sequences], ahead)
        return RoundShape(len(sequences), prepared.draws, penalties=prepared.penalties)

    def _decode_round(self, shape: RoundShape) -> Ranked:
        """The round that was loaded. A function of device memory alone: it may be captured, and then is not called."""
        logits = self._model.forward(self._batches.decode(shape.lanes, shape.rows), self._caches)
        ranked = self._sampler.rank(logits, Prepared(shape.draws, shape.penalties))
        if shape.rows == 1:
            self._batches.feed(ranked.answer[0])
        return ranked

    def _sample(self, ranked: Ranked, sequences: tuple[Sequence, ...]) -> None:
        """Choose, commit and emit one token per sequence."""
        sampled = self._sampler.sample(ranked, [sequence.held.row for sequence in sequences])
        if not sampled.as_ranked:
            self._following = None  # it was fed with others
        now_s = self._clock()
        chosen = zip(sequences, sampled.tokens, sampled.usable, sampled.logprobs, strict=True)
        for sequence, token, usable, logprobs in chosen:
            if not usable:
                logger.error("request %s: logits without a finite maximum", sequence.request_id)
                self._fail(sequence, "engine_error", "the model produced invalid numbers for this request", scrub=True)
                continue
            if sequence.generated == 0:
                sequence.first_token_s = now_s
            sequence.last_token, sequence.last_token_s = token, now_s
            sequence.generated += 1
            self._counters.generated_tokens += 1
            self._events.append(
                TokensGenerated(
                    sequence.request_id, (token,), None if logprobs is None else (logprobs,), sequence.timings()
                )
            )
            if token in sequence.stop_tokens:
                self._finish(sequence, "stop")
            elif sequence.generated == sequence.entitlement.output_tokens:
                self._finish(sequence, "length")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._events.append(RequestFinished(sequence.request_id, reason, sequence.timings()))
        self._release(sequence)
        if reason == "cancelled":
            self._counters.requests_cancelled += 1
        else:
            self._counters.requests_finished += 1
            self._latch.finished()

    def _fail(self, sequence: Sequence, code: FailureCode, message: str, *, scrub: bool = False) -> None:
        self._events.append(RequestFailed(sequence.request_id, code, message))
        self._release(sequence, scrub=scrub)
        self._counters.requests_failed += 1

    def _refuse(self, request: GenerationRequest, refusal: Refusal) -> None:
        self._events.append(RequestFailed(request.request_id, refusal.code, refusal.message))
        self._counters.requests_failed += 1

    def _release(self, sequence: Sequence, *, scrub: bool = False) -> None:
        """Everything the sequence holds goes back; it is gone from every table."""
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence)
        if sequence.lane is not None:
            self._sampler.stop(sequence.lane.row)
            sequence.lane.space.release(scrub=scrub)
            self._state.release(sequence.lane.slot)

    def _recover(self, error: Exception, members: tuple[Sequence, ...]) -> None:
        """End the failed unit's sequences, keep all others; EngineBroken if that cannot be trusted."""
        if is_fatal(error):
            raise EngineBroken(f"the engine failed: {type(error).__name__}: {error}") from error
        out_of_memory = is_out_of_memory(error)
        if out_of_memory:
            self._rounds.release()
            if self._kv.tensor.is_cuda:
                torch.cuda.empty_cache()
        message = "the engine ran out of memory" if out_of_memory else "the engine failed"
        for sequence in members:
            if self._sequences.get(sequence.request_id) is sequence:
                self._fail(sequence, "engine_error", f"{message} while it worked on this request", scrub=True)
        self.check()
        if self._latch.failed(self._clock()):
            raise EngineBroken(f"three steps in a row failed; the last: {type(error).__name__}: {error}") from error
