"""The engine as the asyncio side sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from ninferd.engine.messages import EngineInfo, EngineStats, GenerationRequest, RequestEvent

EngineState = Literal["loading", "ready", "restarting", "draining", "failed"]


class EngineClient(Protocol):
    """Implemented by the daemon's supervisor, and in process by tests and the one-shot CLI."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> EngineInfo | None:
        """Facts of the last loaded engine; None until the first load is done."""
        ...

    @property
    def stats(self) -> EngineStats | None:
        """As of the last heartbeat."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        """Submit and yield events up to a terminal one. Closing the generator cancels the request.

        A request that has produced no token survives a crash of the engine child (it is submitted again);
        one that has gets ``RequestFailed(code="engine_crashed")``.
        """
        ...
