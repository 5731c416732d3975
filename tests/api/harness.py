"""The application over a scripted engine, called in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.types import Message

from ninferd.api.app import create_app
from ninferd.api.context import ApiContext, ConfigStatus
from ninferd.config.schema import Settings
from ninferd.config.secrets import ApiKeys
from tests.support.frontends import make_settings, tiny_frontend
from tests.support.scripted_engine import Script, ScriptedEngine

MODEL = "ninfer-tiny"
TOKENIZER = tiny_frontend().tokenizer
EOS = tiny_frontend().stop_token_ids[0]


def special(text: str) -> int:
    token_id = TOKENIZER.id_of(text)
    assert token_id is not None, text
    return token_id


THINK_END, CALL_OPEN, CALL_CLOSE = special("</think>"), special("<tool_call>"), special("</tool_call>")


def ids(*parts: str | int) -> list[int]:
    """Token ids of texts and single tokens in a row."""
    return [i for part in parts for i in ([part] if isinstance(part, int) else TOKENIZER.encode_text(part))]


ANSWER = ids("why", THINK_END, "\n\nBecause.", EOS)


def body(**fields: Any) -> dict[str, Any]:
    """A minimal chat request with fields added, or removed by None."""
    merged = {"model": MODEL, "messages": [{"role": "user", "content": "q"}], **fields}
    return {name: value for name, value in merged.items() if value is not None}


@dataclass
class Rig:
    """One application. ``settings`` and ``keys`` may be replaced between requests, as a reload does."""

    engine: ScriptedEngine = field(default_factory=lambda: ScriptedEngine([Script(ANSWER)]))
    settings: Settings = field(default_factory=make_settings)
    keys: Mapping[str, str] = field(default_factory=dict)
    status: ConfigStatus = field(default_factory=ConfigStatus)

    def __post_init__(self) -> None:
        self.context = ApiContext(
            engine=self.engine,
            settings=lambda: self.settings,
            frontend=tiny_frontend,
            api_keys=lambda: ApiKeys(self.keys),
            config_status=lambda: self.status,
        )
        self.app: Starlette = create_app(self.context)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client

    async def get(self, path: str, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, **options)

    async def chat(self, request: Any = None, **fields: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/v1/chat/completions", json=body(**fields) if request is None else request)

    async def stream(self, **fields: Any) -> list[Any]:
        """Frames of a streamed answer: JSON objects, comments and ``[DONE]`` as strings."""
        response = await self.chat(**fields, stream=True)
        assert response.status_code == 200, response.text
        return frames_of(response.text)


def frames_of(text: str) -> list[Any]:
    """The frames of an event stream: parsed JSON, or the text of a comment or of ``[DONE]``."""
    assert text.endswith("\n\n"), "a frame ends with a blank line"
    return [_frame(frame) for frame in text.removesuffix("\n\n").split("\n\n")]


def _frame(frame: str) -> Any:
    assert "\n" not in frame, "a frame is one line"
    if frame.startswith(":"):
        return frame
    assert frame.startswith("data: ")
    data = frame.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


class RawCall:
    """One request at the ASGI level, whose client can send slowly, watch what comes and go away."""

    def __init__(self, app: Starlette, headers: Mapping[str, str] | None = None) -> None:
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self._changed = asyncio.Condition()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.create_task(app(scope, self._incoming.get, self._send))

    def send_body(self, data: bytes, *, more: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def wait_sent(self, count: int) -> None:
        """Until the application has sent that many ASGI messages."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.sent) >= count)

    @property
    def status(self) -> int | None:
        return int(self.sent[0]["status"]) if self.sent else None

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent[1:]).decode()

    async def _send(self, message: Message) -> None:
        async with self._changed:
            self.sent.append(message)
            self._changed.notify_all()


def start_chat(rig: Rig, **fields: Any) -> RawCall:
    call = RawCall(rig.app)
    call.send_body(json.dumps(body(**fields)).encode())
    return call
