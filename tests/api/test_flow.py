"""Waiting for events: nothing is lost, and the deadline is one for admission only."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from ninferd.api.errors import ApiError
from ninferd.api.flow import TimedEvents, run_until_disconnect
from ninferd.chat.generation import GenerationEvent
from ninferd.chat.output import ContentDelta, ReasoningDelta

pytestmark = pytest.mark.anyio

FIRST, SECOND = ReasoningDelta("a"), ContentDelta("b")


class Source:
    """Two events; the second waits for its gate. Remembers that it was closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.closed = False

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        try:
            yield FIRST
            await self.gate.wait()
            yield SECOND
        finally:
            self.closed = True


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_impatience_loses_no_event() -> None:
    source = Source()
    events = TimedEvents(source.events(), now() + 60)
    assert await events.next() == FIRST
    assert await events.next(0.0) is None
    assert await events.next(0.001) is None
    source.gate.set()
    assert await events.next(60) == SECOND
    with pytest.raises(StopAsyncIteration):
        await events.next()


async def test_deadline_ends_with_the_first_event() -> None:
    source = Source()
    events = TimedEvents(source.events(), deadline := now() + 0.2)
    assert await events.next() == FIRST
    await asyncio.sleep(max(deadline - now(), 0) + 0.01)
    assert await events.next(0.0) is None
    await events.aclose()


@pytest.mark.parametrize("patience_s", [None, 60])
async def test_no_event_before_the_deadline(patience_s: float | None) -> None:
    gate = asyncio.Event()

    async def silent() -> AsyncGenerator[GenerationEvent, None]:
        await gate.wait()
        yield FIRST

    events = TimedEvents(silent(), now() + 0.001)
    with pytest.raises(ApiError) as caught:
        await events.next(patience_s)
    assert caught.value.code == "request_queue_timeout"
    await events.aclose()


async def test_close_reaches_the_source_in_the_middle_of_a_read() -> None:
    source = Source()
    events = TimedEvents(source.events(), now() + 60)
    await events.next()
    assert await events.next(0.0) is None
    await events.aclose()
    assert source.closed


async def test_failed_work_is_freed_at_once() -> None:
    """Else every refused body would stay until a full garbage collection, which a quiet server never needs."""

    class Body:
        pass

    async def fail(body: Body) -> None:
        raise ValueError(f"not a request: {body}")

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    body = Body()
    freed = weakref.ref(body)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await run_until_disconnect(fail(body), receive)
        del body
        assert freed() is None
    finally:
        gc.enable()
