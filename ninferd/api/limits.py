"""How many requests are let in at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ninferd.errors import NinferError


class TooManyRequestsError(NinferError):
    """The server already holds as many requests as it may."""


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
            raise TooManyRequestsError(f"the server is handling {self._count} requests and takes at most {capacity}")
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
