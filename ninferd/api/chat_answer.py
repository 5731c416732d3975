"""Chat answers made from generation events: collected into one object, or streamed (serving §3.1, §3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from ninferd.api.chat_payloads import ChatPayloads, Payload, message_of, timings_of, tool_call, usage_of
from ninferd.api.chat_request import ChatRequest
from ninferd.api.flow import TimedEvents
from ninferd.api.request_record import RequestRecord
from ninferd.api.sse import DONE, KEEP_ALIVE, EventStream, data_frame
from ninferd.chat.generation import Finish, Generation, GenerationEvent
from ninferd.chat.output import ContentDelta, ReasoningDelta, ToolCallsDelta
from ninferd.chat.tool_calls import ToolCall
from ninferd.engine.messages import PrefillProgress, RequestAdmitted, TokenLogprobs

HOLD_STATUS_S = 5.0
"""How long a stream's 200 is held back for admission, so that a refusal can still be an HTTP status."""


class AggregateAnswer:
    """Collects a generation into one ``chat.completion``."""

    def __init__(self, payloads: ChatPayloads, request: ChatRequest, record: RequestRecord) -> None:
        self._payloads = payloads
        self._wants_logprobs = request.top_logprobs is not None
        self._record = record
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._calls: list[ToolCall] = []

    async def collect(self, events: TimedEvents) -> Payload:
        """Raises what the generation raises."""
        while True:
            event = await events.next()
            if isinstance(event, Finish):
                self._record.done(event, len(self._calls))
                return self._completion(event)
            self._add(event)

    def _add(self, event: GenerationEvent | None) -> None:
        if isinstance(event, RequestAdmitted):
            self._record.admitted()
        elif isinstance(event, ReasoningDelta):
            self._reasoning.append(event.text)
        elif isinstance(event, ContentDelta):
            self._content.append(event.text)
            self._logprobs.extend(event.logprobs)
        elif isinstance(event, ToolCallsDelta):
            self._calls.extend(event.calls)

    def _completion(self, finish: Finish) -> Payload:
        message = message_of("".join(self._reasoning), "".join(self._content), self._calls)
        logprobs = self._payloads.logprobs(self._logprobs) if self._wants_logprobs else None
        return {
            **self._payloads.completion(message, logprobs, finish.reason),
            "usage": usage_of(finish.usage),
            "timings": timings_of(finish.usage, finish.timings),
        }


class StreamedAnswer:
    """Sends a generation as ``chat.completion.chunk`` frames in the order of serving §3.2."""

    def __init__(
        self,
        stream: EventStream,
        payloads: ChatPayloads,
        request: ChatRequest,
        generation: Generation,
        record: RequestRecord,
    ) -> None:
        self._stream = stream
        self._payloads = payloads
        self._form = request.form
        self._wants_logprobs = request.top_logprobs is not None
        self._generation = generation
        self._record = record
        self._calls = 0

    async def send(self, events: TimedEvents, headers: Mapping[str, str], keepalive_s: float) -> None:
        """Hold the 200 until admission or HOLD_STATUS_S, then stream to the end; raises what the generation raises."""
        event = await events.next(HOLD_STATUS_S)
        await self._stream.start(headers)
        await self._write(self._payloads.chunk({"role": "assistant", "content": ""}))
        while not isinstance(event, Finish):
            if event is not None:
                await self._write_event(event)
            event = await events.next(keepalive_s)
            if event is None:
                await self._stream.write(KEEP_ALIVE)
        await self._finish(event)

    async def _write_event(self, event: GenerationEvent) -> None:
        if isinstance(event, RequestAdmitted):
            self._record.admitted()
            await self._write_progress(event.cached_tokens, event.cached_tokens, 0.0)
        elif isinstance(event, PrefillProgress):
            await self._write_progress(event.cached_tokens, event.processed_tokens, event.elapsed_ms)
        elif isinstance(event, ReasoningDelta):
            await self._write_visible(self._payloads.chunk({"reasoning_content": event.text}))
        elif isinstance(event, ContentDelta):
            logprobs = self._payloads.logprobs(event.logprobs) if self._wants_logprobs else None
            await self._write_visible(self._payloads.chunk({"content": event.text}, logprobs=logprobs))
        elif isinstance(event, ToolCallsDelta):
            calls = [{"index": self._calls + index, **tool_call(call)} for index, call in enumerate(event.calls)]
            self._calls += len(calls)
            await self._write_visible(self._payloads.chunk({"tool_calls": calls}))

    async def _write_progress(self, cached: int, processed: int, elapsed_ms: float) -> None:
        if self._form.return_progress:
            progress = {
                "total": self._generation.usage.prompt_tokens,
                "cache": cached,
                "processed": processed,
                "time_ms": elapsed_ms,
            }
            await self._write({**self._payloads.chunk({}), "prompt_progress": progress})

    async def _write_visible(self, chunk: Payload) -> None:
        if self._form.timings_per_token:
            chunk["timings"] = timings_of(self._generation.usage, self._generation.timings)
        await self._write(chunk)

    async def _finish(self, finish: Finish) -> None:
        timings = timings_of(finish.usage, finish.timings)
        last = self._payloads.chunk({}, finish_reason=finish.reason)
        if self._form.include_usage:
            await self._write(last)
            totals = {"usage": usage_of(finish.usage), "timings": timings}
            await self._stream.write(data_frame({**self._payloads.usage_chunk(), **totals}))
        else:
            await self._write({**last, "timings": timings})
        await self._stream.write(DONE)
        await self._stream.end()
        self._record.done(finish, self._calls)

    async def _write(self, chunk: Payload) -> None:
        if self._form.include_usage:
            chunk["usage"] = None
        await self._stream.write(data_frame(chunk))
