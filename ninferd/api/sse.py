"""Server-sent events over ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


def data_frame(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class EventStream:
    """One response whose body is a stream of frames. Nothing is sent before ``start``."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the 200; from here on errors can only be frames."""
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {**_HEADERS, **headers}.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, frame: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
