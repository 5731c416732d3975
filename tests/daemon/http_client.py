"""A plain HTTP client of a running daemon."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WAIT_S = 60.0  # only a broken daemon takes this long


class ChatClient:
    """Talks to ``127.0.0.1:port``."""

    def __init__(self, port: int, model: str) -> None:
        self.port = port
        self._model = model

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        return response.status, body

    @contextmanager
    def stream(self, max_tokens: int | None) -> Iterator[Iterator[str]]:
        """``data:`` payloads of a streamed greedy chat answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        body = {
            "model": self._model,
            "stream": True,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Hello"}],
            **({} if max_tokens is None else {"max_tokens": max_tokens}),
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        try:
            yield _payloads(connection.getresponse())
        finally:
            connection.close()


def finish_reason(payloads: list[str]) -> str | None:
    """Of a complete stream, given all its payloads."""
    assert payloads[-1] == "[DONE]", payloads[-3:]
    reason: str | None = json.loads(payloads[-2])["choices"][0]["finish_reason"]
    return reason


def has_error(payloads: list[str]) -> bool:
    """Whether a stream carries an error event."""
    return any("error" in json.loads(payload) for payload in payloads if payload != "[DONE]")


def _payloads(response: http.client.HTTPResponse) -> Iterator[str]:
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").decode().strip()
