"""Requests in flight, kept in the main process so that they outlive an engine child."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ninferd.engine.messages import (
    FailureCode,
    GenerationRequest,
    RequestAdmitted,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TokensGenerated,
)

MAX_ENGINES_LOST = 3
"""Engines that may crash under one request: if it is the cause, it must not take the whole service along."""

_SUSPECT = f"the engine stopped {MAX_ENGINES_LOST} times before it answered this request"


@dataclass
class TrackedRequest:
    """One request and how far it got."""

    request: GenerationRequest
    deadline_s: float | None  # loop time by which it must be admitted; None: no limit (any more)
    events: asyncio.Queue[RequestEvent] = field(default_factory=asyncio.Queue)
    sent: bool = False  # a child has it
    streaming: bool = False  # the client may have seen a token
    engines_lost: int = 0  # children that crashed while they had it
    expiry: asyncio.TimerHandle | None = None

    def for_submission(self, now_s: float) -> GenerationRequest:
        """The request with what is left of its pending time."""
        if self.deadline_s is None:
            return msgspec.structs.replace(self.request, pending_timeout_ms=None)
        remaining_ms = max(1, round((self.deadline_s - now_s) * 1000))
        return msgspec.structs.replace(self.request, pending_timeout_ms=remaining_ms)


class RequestTable:
    """All requests without a terminal event, in order of arrival."""

    def __init__(self) -> None:
        self._requests: dict[str, TrackedRequest] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: GenerationRequest) -> TrackedRequest:
        """Track a request; its pending time runs from now. Raises ValueError for an id in use."""
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        loop = asyncio.get_running_loop()
        timeout_ms = request.pending_timeout_ms
        tracked = TrackedRequest(request, None if timeout_ms is None else loop.time() + timeout_ms / 1000)
        self._requests[request.request_id] = tracked
        if tracked.deadline_s is not None:
            tracked.expiry = loop.call_at(tracked.deadline_s, self._expire, tracked)
        return tracked

    def deliver(self, event: RequestEvent) -> None:
        """Pass an event of the child on; dropped if nobody waits for it any more."""
        tracked = self._requests.get(event.request_id)
        if tracked is None:
            return
        if isinstance(event, RequestAdmitted):
            tracked.deadline_s = None
        elif isinstance(event, TokensGenerated):
            tracked.streaming = True
        elif isinstance(event, RequestFinished | RequestFailed):
            self.remove(tracked)
        tracked.events.put_nowait(event)

    def remove(self, tracked: TrackedRequest) -> bool:
        """Forget a request; False if it was not tracked any more."""
        if self._requests.get(tracked.request.request_id) is not tracked:
            return False
        del self._requests[tracked.request.request_id]
        if tracked.expiry is not None:
            tracked.expiry.cancel()
        self._changed.set()
        return True

    def unsent(self) -> list[TrackedRequest]:
        return [tracked for tracked in self._requests.values() if not tracked.sent]

    def sent(self) -> list[TrackedRequest]:
        return [tracked for tracked in self._requests.values() if tracked.sent]

    def child_crashed(self, message: str) -> None:
        """The child is gone: what had streamed a token or has seen too many crashes fails, the rest waits."""
        for tracked in self.sent():
            tracked.engines_lost += 1
            if tracked.engines_lost == MAX_ENGINES_LOST and not tracked.streaming:
                self.fail(tracked, "engine_error", _SUSPECT)
        self.child_ended("engine_crashed", message)

    def child_ended(self, code: FailureCode, message: str) -> None:
        """The child is gone: what had streamed a token fails, the rest waits for the next child."""
        for tracked in self.sent():
            if tracked.streaming:
                self.fail(tracked, code, message)
            else:
                tracked.sent = False
        self._changed.set()

    def fail(self, tracked: TrackedRequest, code: FailureCode, message: str) -> None:
        self.deliver(RequestFailed(tracked.request.request_id, code, message))

    def fail_all(self, code: FailureCode, message: str) -> None:
        for tracked in list(self._requests.values()):
            self.fail(tracked, code, message)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition`` of this table holds; False if it does not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _expire(self, tracked: TrackedRequest) -> None:
        """Enforce the pending time while no child has the request; a child enforces it itself."""
        if not tracked.sent and tracked.deadline_s is not None:
            self.fail(tracked, "queue_timeout", "the request waited too long for the engine")
