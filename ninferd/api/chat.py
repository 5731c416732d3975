"""``POST /v1/chat/completions``: one request from bytes to bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ninferd.api.chat_answer import AggregateAnswer, StreamedAnswer
from ninferd.api.chat_payloads import ChatPayloads, Payload
from ninferd.api.chat_request import ChatRequest, plan_generation, read_chat_request
from ninferd.api.context import ApiContext
from ninferd.api.errors import ApiError, from_exception, queue_timeout
from ninferd.api.flow import TimedEvents, run_until_disconnect
from ninferd.api.limits import read_body
from ninferd.api.middleware import KEY_LABEL
from ninferd.api.models import public_model_name
from ninferd.api.request_record import RequestRecord
from ninferd.api.sse import EventStream, data_frame
from ninferd.api.stats import ApiCounters
from ninferd.chat.errors import GenerationFailedError
from ninferd.chat.frontend import ChatFrontend
from ninferd.chat.generation import Generation, GenerationPlan
from ninferd.config.schema import Settings
from ninferd.engine.messages import EngineInfo

PROTOCOL = "openai_chat_completions"


@dataclass(frozen=True)
class _Exchange:
    """The ASGI side of one call, and how it is accounted for."""

    scope: Scope
    receive: Receive
    send: Send
    stream: EventStream
    record: RequestRecord

    async def respond(self, response: Response) -> None:
        await response(self.scope, self.receive, self.send)


@dataclass(frozen=True)
class _Terms:
    """What a call is served with: as it was when the call arrived, whatever is reloaded meanwhile."""

    settings: Settings
    frontend: ChatFrontend
    info: EngineInfo
    deadline_s: float  # for admission, in the event loop's time


class ChatCompletions:
    """The endpoint, as an ASGI application of its own: it has to see the client leave at every stage."""

    def __init__(self, context: ApiContext, counters: ApiCounters, preparation: Executor) -> None:
        """``preparation``: where JSON, templates and tokenisation run."""
        self._context = context
        self._counters = counters
        self._preparation = preparation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(self._counters, PROTOCOL, scope.get(KEY_LABEL))
        exchange = _Exchange(scope, receive, send, EventStream(send), record)
        try:
            await self._serve(exchange)
        except ClientDisconnect:
            record.cancelled()
        except asyncio.CancelledError:
            record.cancelled()
            raise
        except Exception as exception:
            await self._report(from_exception(exception), exchange)

    async def _serve(self, exchange: _Exchange) -> None:
        context, settings = self._context, self._context.settings()
        info = context.serving_engine()
        deadline_s = asyncio.get_running_loop().time() + settings.queue.pending_timeout_ms / 1e3
        with context.in_flight.enter(context.max_in_flight()):
            limit_bytes = settings.limits.max_request_mib << 20
            async with _until(deadline_s):
                body = await read_body(Headers(scope=exchange.scope), exchange.receive, limit_bytes)
            terms = _Terms(settings, context.frontend(), info, deadline_s)
            await run_until_disconnect(self._answer(exchange, terms, body), exchange.receive)

    async def _answer(self, exchange: _Exchange, terms: _Terms, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        async with _until(terms.deadline_s):
            request, plan = await loop.run_in_executor(self._preparation, _prepare, terms, body)
        exchange.record.started(request, thinking=plan.prompt.enable_thinking)
        payloads = ChatPayloads(request.model, terms.frontend.tokenizer)
        headers = {"x-ninfer-ignored": ",".join(request.ignored)} if request.ignored else {}
        generation = Generation(self._context.engine, terms.frontend, plan)
        if request.form.stream:
            streamed = StreamedAnswer(exchange.stream, payloads, request, generation, exchange.record)
            async with _timed(generation, terms.deadline_s) as events:
                await streamed.send(events, headers, terms.settings.http.keepalive_comment_s)
            return
        try:
            payload = await _collect(generation, terms.deadline_s, payloads, request, exchange.record)
        except GenerationFailedError as error:
            if error.code != "engine_crashed":
                raise
            # The client has seen nothing of it, so it can be tried again as if it had waited.
            again = Generation(self._context.engine, terms.frontend, plan)
            deadline_s = loop.time() + terms.settings.queue.pending_timeout_ms / 1e3
            payload = await _collect(again, deadline_s, payloads, request, exchange.record)
        await exchange.respond(Response(msgspec.json.encode(payload), 200, headers, "application/json"))

    async def _report(self, error: ApiError, exchange: _Exchange) -> None:
        """As an HTTP error while that is still possible, else as the last frame, with no ``[DONE]`` after it."""
        if error.status == 500:
            exchange.record.crashed()
        exchange.record.failed(error)
        if exchange.stream.started:
            await exchange.stream.write(data_frame(error.body()))
            await exchange.stream.end()
        else:
            await exchange.respond(error.response(retry_after=self._context.settings().http.retry_after))


@asynccontextmanager
async def _until(deadline_s: float) -> AsyncIterator[None]:
    """Raises the queue timeout when the block lasts beyond the deadline."""
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError:
        raise queue_timeout() from None


@asynccontextmanager
async def _timed(generation: Generation, deadline_s: float) -> AsyncIterator[TimedEvents]:
    """The events of a generation that must be admitted before the deadline; leaving the block cancels it."""
    remaining_ms = int(1e3 * (deadline_s - asyncio.get_running_loop().time()))
    events = TimedEvents(generation.events(max(remaining_ms, 1)), deadline_s)
    try:
        yield events
    finally:
        await events.aclose()


async def _collect(
    generation: Generation, deadline_s: float, payloads: ChatPayloads, request: ChatRequest, record: RequestRecord
) -> Payload:
    async with _timed(generation, deadline_s) as events:
        return await AggregateAnswer(payloads, request, record).collect(events)


def _prepare(terms: _Terms, body: bytes) -> tuple[ChatRequest, GenerationPlan]:
    """The CPU-heavy part: parse, validate, render, tokenise."""
    settings, max_context = terms.settings, terms.info.max_context
    model = public_model_name(settings, terms.info)
    request = read_chat_request(body, settings, model=model, max_context=max_context)
    return request, plan_generation(request, terms.frontend, settings, max_context=max_context)
