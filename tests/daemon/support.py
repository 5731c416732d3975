"""Shared pieces of the daemon's tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ninferd.config.schema import Settings
from ninferd.daemon.supervisor import Supervisor
from ninferd.engine.messages import GenerationRequest, LoadProgress, PromptIdentity, RequestEvent, SamplingParams
from tests.daemon.fake_engine import Act

T = TypeVar("T")
TIMEOUT_S = 30.0  # only a broken test waits this long


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run an async test body; a hang is a failure."""
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT_S))


def settings(artifact: str = "loads", **tables: dict[str, object]) -> Settings:
    """A configuration for the fake engine."""
    return Settings.from_layers([{"model": {"artifact": artifact}}, tables])


def request(request_id: str, act: Act, max_tokens: int = 3, pending_timeout_ms: int | None = None) -> GenerationRequest:
    prompt = PromptIdentity.from_token_ids([int(act)])
    return GenerationRequest(request_id, prompt, SamplingParams(seed=0), max_tokens, (), pending_timeout_ms)


@dataclass
class Observer:
    """Records what the supervisor reports."""

    progress: list[LoadProgress] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def loading(self, progress: LoadProgress) -> None:
        self.progress.append(progress)

    def engine_status(self, text: str) -> None:
        self.texts.append(text)

    def engine_restarted(self) -> None:
        self.texts.append("restarted")


class Reader:
    """Collects the events of one request in the background."""

    def __init__(self, supervisor: Supervisor, request: GenerationRequest) -> None:
        self.events: list[RequestEvent] = []
        self._arrived = asyncio.Event()
        self._stream = supervisor.generate(request)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> list[RequestEvent]:
        async for event in self._stream:
            self.events.append(event)
            self._arrived.set()
        return self.events

    async def wait_for(self, kind: type[RequestEvent]) -> RequestEvent:
        """The first event of ``kind``."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    return event
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Give up on the request, as a handler does whose client went away."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._stream.aclose()


@asynccontextmanager
async def supervised(
    directory: Path,
    configuration: Settings | None = None,
    *,
    observer: Observer | None = None,
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[None]]]:
    """A started supervisor over the fake engine, and its ``supervise`` task."""
    supervisor = Supervisor(
        configuration or settings(),
        observer or Observer(),
        command=fake_command(directory),
        backoff_base_s=0,
    )
    watch: asyncio.Task[None] | None = None
    try:
        await supervisor.start()
        watch = asyncio.create_task(supervisor.supervise())
        yield supervisor, watch
    finally:
        await supervisor.stop()
        if watch is not None:
            await asyncio.gather(watch, return_exceptions=True)


def fake_command(directory: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.daemon.fake_engine", str(directory))


def launches(directory: Path) -> list[str]:
    """Artifacts of all children started so far."""
    return [line.split()[1] for line in (directory / "launches").read_text().splitlines()]
