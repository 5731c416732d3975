"""Waiting, in the ways a request handler needs it: for the client to leave, and for events with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ninferd.api.errors import queue_timeout
from ninferd.chat.generation import GenerationEvent


async def run_until_disconnect(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run ``work``, which has read the whole body, but cancel it the moment the client goes away.

    Raises ClientDisconnect in that case, whatever ``work`` has come to.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        else:
            raise ClientDisconnect
    finally:
        await _cancel(watching)
        await _cancel(working)
        del working  # holds the exception that holds this frame: the body would stay until a full collection


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel and wait until the task has cleaned up; its own outcome no longer matters."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))


class TimedEvents:
    """Reads a generation with a time limit per read that loses no event, and a deadline for its admission."""

    def __init__(self, events: AsyncGenerator[GenerationEvent, None], admission_deadline_s: float) -> None:
        """``admission_deadline_s``: in the event loop's time."""
        self._events = events
        self._deadline_s = admission_deadline_s
        self._admitted = False
        self._reading: asyncio.Task[GenerationEvent] | None = None

    async def next(self, patience_s: float | None = None) -> GenerationEvent | None:
        """The next event, or None after ``patience_s`` without one.

        Raises StopAsyncIteration at the end, GenerationFailedError, and the queue timeout when the first event is
        later than the deadline.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._events))
        remaining = None if self._admitted else max(self._deadline_s - asyncio.get_running_loop().time(), 0.0)
        limits = [limit for limit in (patience_s, remaining) if limit is not None]
        await asyncio.wait((self._reading,), timeout=min(limits, default=None))
        if not self._reading.done():
            if remaining is not None and (patience_s is None or remaining <= patience_s):
                raise queue_timeout()
            return None
        reading, self._reading = self._reading, None
        event = reading.result()
        self._admitted = True
        return event

    async def aclose(self) -> None:
        """Cancel the generation wherever it is."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
            self._reading = None
        await self._events.aclose()
