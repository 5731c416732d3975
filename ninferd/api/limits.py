"""Bounds on what comes in: requests at once, and bytes of one body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ninferd.errors import InputError, NinferError

MAX_DISCARDED_BYTES = 64 << 20

_LENGTH_DIGITS = 20  # more than any length that fits 64 bits


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

    Refuses by ``Content-Length``, and by counting, since a chunked body announces no length. What is too large is still
    read for a while and forgotten: a client that is busy sending would not see the refusal otherwise. Raises
    BodyTooLargeError, and ClientDisconnect when the client goes away before the end.
    """
    readable = limit_bytes + MAX_DISCARDED_BYTES
    announced = _announced_bytes(headers)
    size = announced if announced > readable else 0
    chunks: list[bytes] = []
    more = True
    while more and size <= readable:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        if max(size, announced) <= limit_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
    if max(size, announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    return b"".join(chunks)


def _announced_bytes(headers: Headers) -> int:
    """``Content-Length``; 0 when there is none that makes sense, then only counting decides."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _LENGTH_DIGITS else 0
