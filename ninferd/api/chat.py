"""``POST /v1/chat/completions``: one request from bytes to bytes."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import Executor
from dataclasses import dataclass

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ninferd.api.chat_answer import AggregateAnswer, StreamedAnswer
from ninferd.api.chat_payloads import ChatPayloads
from ninferd.api.chat_request import ChatRequest, read_chat_request
from ninferd.api.context import ApiContext
from ninferd.api.errors import ApiError, from_exception, queue_timeout
from ninferd.api.flow import TimedEvents, run_until_disconnect
from ninferd.api.limits import read_body
from ninferd.api.middleware import KEY_LABEL
from ninferd.api.models import public_model_name
from ninferd.api.request_record import RequestRecord
from ninferd.api.sse import EventStream, data_frame
from ninferd.api.stats import ApiCounters
from ninferd.chat.frontend import ChatFrontend
from ninferd.chat.generation import Generation, GenerationPlan
from ninferd.config.schema import Settings
from ninferd.engine.messages import EngineInfo

PROTOCOL = "openai_chat_completions"


@dataclass(frozen=True)
class _Prepared:
    request: ChatRequest
    plan: GenerationPlan


@dataclass(frozen=True)
class _Call:
    """One call of the endpoint; its settings and frontend stay what they were when it arrived."""

    settings: Settings
    frontend: ChatFrontend
    info: EngineInfo
    record: RequestRecord
    deadline_s: float  # for admission, in the event loop's time
    send: Send


class ChatCompletions:
    """The endpoint, as an ASGI application of its own: it has to see the client leave at every stage."""

    def __init__(self, context: ApiContext, counters: ApiCounters, preparation: Executor) -> None:
        """``preparation``: where JSON, templates and tokenisation run."""
        self._context = context
        self._counters = counters
        self._preparation = preparation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(self._counters, PROTOCOL, scope.get(KEY_LABEL))
        stream = EventStream(send)
        try:
            await self._serve(scope, receive, stream, send, record)
        except ClientDisconnect:
            record.cancelled()
        except asyncio.CancelledError:
            record.cancelled()
            raise
        except Exception as exception:
            error = from_exception(exception)
            if error.status == 500:
                record.crashed()
            record.failed(error)
            await self._report(error, stream, scope, receive, send)

    async def _serve(
        self, scope: Scope, receive: Receive, stream: EventStream, send: Send, record: RequestRecord
    ) -> None:
        context, settings = self._context, self._context.settings()
        info = context.serving_engine()
        deadline_s = asyncio.get_running_loop().time() + settings.queue.pending_timeout_ms / 1e3
        with context.in_flight.enter(context.max_in_flight()):
            body = await self._body(scope, receive, settings, deadline_s)
            call = _Call(settings, context.frontend(), info, record, deadline_s, send)
            await run_until_disconnect(self._answer(call, body, stream, scope, receive), receive)

    async def _body(self, scope: Scope, receive: Receive, settings: Settings, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await read_body(Headers(scope=scope), receive, settings.limits.max_request_mib << 20)
        except TimeoutError:
            raise queue_timeout() from None

    async def _answer(self, call: _Call, body: bytes, stream: EventStream, scope: Scope, receive: Receive) -> None:
        prepared = await self._prepare(call, body)
        request = prepared.request
        call.record.started(request, thinking=prepared.plan.prompt.enable_thinking)
        generation = Generation(self._context.engine, call.frontend, prepared.plan)
        remaining_ms = int(1e3 * (call.deadline_s - asyncio.get_running_loop().time()))
        events = TimedEvents(generation.events(max(remaining_ms, 1)), call.deadline_s)
        payloads = ChatPayloads(request.model, call.frontend.tokenizer)
        headers = {"x-ninfer-ignored": ",".join(request.ignored)} if request.ignored else {}
        try:
            if request.form.stream:
                answer = StreamedAnswer(stream, payloads, request, generation, call.record)
                await answer.send(events, headers, call.settings.http.keepalive_comment_s)
            else:
                payload = await AggregateAnswer(payloads, request, call.record).collect(events)
                response = Response(msgspec.json.encode(payload), 200, headers, "application/json")
                await response(scope, receive, call.send)
        finally:
            await events.aclose()

    async def _prepare(self, call: _Call, body: bytes) -> _Prepared:
        loop = asyncio.get_running_loop()
        model = public_model_name(call.settings, call.info)
        try:
            async with asyncio.timeout_at(call.deadline_s):
                return await loop.run_in_executor(self._preparation, _prepare, call, body, model)
        except TimeoutError:
            raise queue_timeout() from None

    async def _report(self, error: ApiError, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
        """As an HTTP error while that is still possible, else as the last frame, with no ``[DONE]`` after it."""
        if stream.started:
            await stream.write(data_frame(error.body()))
            await stream.end()
            return
        response = error.response(retry_after=self._context.settings().http.retry_after)
        await response(scope, receive, send)


def _prepare(call: _Call, body: bytes, model: str) -> _Prepared:
    """The CPU-heavy part: parse, validate, render, tokenise."""
    settings, frontend, max_context = call.settings, call.frontend, call.info.max_context
    request = read_chat_request(body, settings, model=model, max_context=max_context)
    prompt = frontend.prepare(request.conversation, settings, max_context=max_context)
    sampling = frontend.sampling(
        settings,
        request.sampler,
        thinking=prompt.enable_thinking,
        seed=request.seed,
        top_logprobs=request.top_logprobs,
    )
    plan = GenerationPlan(
        request_id=secrets.token_hex(16),
        prompt=prompt,
        sampling=sampling,
        max_tokens=request.max_tokens,
        stop=request.stop,
        first_call_only=request.first_call_only,
    )
    return _Prepared(request, plan)
