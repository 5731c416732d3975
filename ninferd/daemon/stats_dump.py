"""The answer of ``GET /stats`` without a connection, for the log."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.types import Message, Scope


async def read_stats(app: Starlette) -> str:
    """Body of ``/stats`` as the application answers it now: one line of JSON."""
    body = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/stats",
        "raw_path": b"/stats",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    return body.decode()
