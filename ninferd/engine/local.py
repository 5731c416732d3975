"""An engine in a thread of this process, for the one-shot command line and for tests."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ninferd.engine.client import EngineState
from ninferd.engine.engine import Engine
from ninferd.engine.loop import EngineLoop
from ninferd.engine.messages import (
    CancelRequest,
    Command,
    EngineEvent,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    Heartbeat,
    LoadProgress,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    Shutdown,
)

logger = logging.getLogger(__name__)

Build = Callable[[Callable[[LoadProgress], None]], Engine]


@dataclass(frozen=True)
class _Stream:
    """Where the events of one request go."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[RequestEvent]

    def put(self, event: RequestEvent) -> None:
        """From the engine thread."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the consumer's event loop is closed; it cancelled or is gone with its process
            logger.debug("event of request %s has no consumer", event.request_id)


class LocalEngine:
    """An ``EngineClient`` over ``Engine``: ``async with LocalEngine(build) as client``.

    ``build`` runs in the engine thread, e.g. ``functools.partial(build_engine, settings)``; entering waits for it and
    raises what it raised.
    """

    def __init__(self, build: Build, on_progress: Callable[[LoadProgress], None] = lambda _progress: None) -> None:
        self._build = build
        self._on_progress = on_progress
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()  # over _streams and _state: a stream may not slip in while the engine fails
        self._state: EngineState = "loading"
        self._info: EngineInfo | None = None
        self._stats: EngineStats | None = None
        self._error: Exception | None = None
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def state(self) -> EngineState:
        """``loading``, ``ready`` or ``failed``."""
        return self._state

    @property
    def info(self) -> EngineInfo | None:
        """Facts of the loaded engine."""
        return self._info

    @property
    def stats(self) -> EngineStats | None:
        """As of the last heartbeat."""
        return self._stats

    async def __aenter__(self) -> Self:
        self._thread.start()
        await asyncio.to_thread(self._loaded.wait)
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands.put(Shutdown())
        await asyncio.to_thread(self._thread.join)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        """See ``EngineClient.generate``. ValueError if the request's id is in use."""
        stream = _Stream(asyncio.get_running_loop(), asyncio.Queue())
        with self._lock:
            if request.request_id in self._streams:
                raise ValueError(f"request id {request.request_id!r} is in use")
            available = self._state in ("loading", "ready")
            if available:
                self._streams[request.request_id] = stream
                self._commands.put(request)
        if not available:
            yield RequestFailed(request.request_id, "unavailable", "the engine is not running")
            return
        try:
            while True:
                event = await stream.events.get()
                yield event
                if isinstance(event, (RequestFinished, RequestFailed)):
                    return
        finally:
            with self._lock:
                if self._streams.get(request.request_id) is stream:
                    del self._streams[request.request_id]
                    self._commands.put(CancelRequest(request.request_id))

    def _run(self) -> None:
        """The engine thread."""
        state: EngineState = "failed"
        try:
            engine = self._build(self._on_progress)
            self._info, self._stats, self._state = engine.info, engine.stats(), "ready"
            self._loaded.set()
            EngineLoop(engine, self._commands, self._dispatch).run()
            state = "draining"
        except Exception as error:
            self._error = error
            logger.log(logging.ERROR if self._loaded.is_set() else logging.DEBUG, "engine thread", exc_info=True)
        with self._lock:
            self._state = state
            orphans = list(self._streams)
        self._dispatch(RequestFailed(request_id, "engine_crashed", "the engine failed") for request_id in orphans)
        self._loaded.set()

    def _dispatch(self, events: Iterable[EngineEvent]) -> None:
        """Each event to its stream; a terminal one ends the stream here, so that its end cancels nothing."""
        for event in events:
            if isinstance(event, Heartbeat):
                self._stats = event.stats
            elif isinstance(event, RequestEvent):
                with self._lock:
                    ended = isinstance(event, (RequestFinished, RequestFailed))
                    stream = self._streams.pop(event.request_id, None) if ended else self._streams.get(event.request_id)
                if stream is not None:
                    stream.put(event)
