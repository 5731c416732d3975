"""Bounds on what comes in: requests at once, and bytes of one body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ninferd.errors import InputError, NinferError


class TooManyRequestsError(NinferError):
    """The server already holds as many requests as it may."""


class BodyTooLargeError(InputError):
    """A request body beyond ``limits.max_request_mib``."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than {limit_bytes >> 20} MiB (limits.max_request_mib)")


class InFlightRequests:
    """Counts generation requests from before their preparation until their response is released.

    Used from one event loop only.
    """

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def enter(self, capacity: int) -> Iterator[None]:
        """Hold one place; raises TooManyRequestsError when ``capacity`` places are taken.

        Lowering the capacity later never turns out a request that is already counted.
        """
        if self._count >= capacity:
            raise TooManyRequestsError(
                f"the server is handling {self._count} requests and takes at most {capacity}; try again later"
            )
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no request is in flight (used while draining)."""
        await self._idle.wait()


async def read_body(headers: Headers, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body of a request.

    Refuses on ``Content-Length`` before reading anything, and counts while reading, since a chunked body announces no
    length. Raises BodyTooLargeError, and ClientDisconnect when the client goes away before the end.
    """
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
