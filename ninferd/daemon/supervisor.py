"""Keeps an engine child running and its requests alive across crashes and replacements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, Literal, Protocol

from ninferd.config.schema import Settings
from ninferd.daemon.child import ENGINE_COMMAND, EngineChild, EngineLoadError
from ninferd.daemon.requests import RequestTable, TrackedRequest
from ninferd.daemon.restart_policy import BACKOFF_BASE_S, RestartPolicy
from ninferd.engine.client import EngineState
from ninferd.engine.messages import (
    CancelRequest,
    EngineEvent,
    EngineFailed,
    EngineInfo,
    EngineReady,
    EngineStats,
    GenerationRequest,
    Heartbeat,
    LoadProgress,
    LogLine,
    RequestEvent,
    RequestFailed,
    RequestFinished,
)
from ninferd.errors import NinferError

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 10.0  # for a child that was asked to shut down
_CANCEL_GRACE_S = 5.0  # for the engine to confirm cancellations
_GAVE_UP = "the engine does not stay up; the operator has to look at the log"
_CRASHED = "the engine stopped while this answer was being generated; send the request again"
_SHUTTING_DOWN = "the server is shutting down"
_REPLACED = "the engine was replaced by a configuration change before this answer was complete; send the request again"
_MODEL_CHANGED = "the model was replaced while this request waited; send the request again"


class EngineGaveUpError(NinferError):
    """The engine crashed too often; the daemon cannot serve."""

    exit_status: ClassVar[int] = 3


class SupervisorObserver(Protocol):
    """Who is told what the engine is doing."""

    def loading(self, progress: LoadProgress) -> None: ...

    def engine_status(self, text: str) -> None: ...

    def engine_restarted(self) -> None: ...


class Supervisor:
    """``EngineClient`` over the child process. All methods belong to one event loop."""

    def __init__(
        self,
        settings: Settings,
        observer: SupervisorObserver,
        command: Sequence[str] = ENGINE_COMMAND,
        backoff_base_s: float = BACKOFF_BASE_S,
    ) -> None:
        limits = settings.daemon
        self._settings = settings
        self._observer = observer
        self._policy = RestartPolicy(limits.engine_max_restarts, limits.engine_restart_window_s, backoff_base_s)
        self._command = command
        self._requests = RequestTable()
        self._child: EngineChild | None = None
        self._serving = False  # the child is ready and takes new requests
        self._phase: Literal["loading", "ready", "restarting", "failed"] = "loading"
        self._draining = False
        self._changing_child = asyncio.Lock()
        self._info: EngineInfo | None = None
        self._stats: EngineStats | None = None
        self._heartbeat_s = 0.0
        self._restarts = 0

    @property
    def state(self) -> EngineState:
        return "draining" if self._draining and self._phase != "failed" else self._phase

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    @property
    def stats(self) -> EngineStats | None:
        return self._stats

    @property
    def restarts(self) -> int:
        """Restarts after a crash since the daemon started."""
        return self._restarts

    @property
    def requests_in_flight(self) -> int:
        return len(self._requests)

    @property
    def child_pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def is_alive(self, max_heartbeat_age_s: float) -> bool:
        """Whether the engine makes progress. Loading and restarting count: they have their own time limits."""
        if self._phase == "failed":
            return False
        if not self._serving:
            return True
        return asyncio.get_running_loop().time() - self._heartbeat_s <= max_heartbeat_age_s

    async def start(self) -> None:
        """First load. Raises EngineLoadError: what cannot load once is reported, not retried."""
        async with self._changing_child:
            await self._load(self._settings)

    async def supervise(self) -> None:
        """Restart the engine whenever it ends; call after ``start``.

        Returns once a drained engine ended; raises EngineGaveUpError when it crashes too often.
        """
        while True:
            child = self._current_child()
            how = await child.wait_ended()
            async with self._changing_child:
                if self._child is not child:
                    continue
                self._serving = False
                if self._draining:
                    self._requests.fail_all("unavailable", _SHUTTING_DOWN)
                    return
                await self._recover(how)

    async def replace(self, settings: Settings) -> None:
        """Change to ``settings`` under the open listener: new requests wait, running ones get ``server.drain_s``.

        Raises EngineLoadError if the new engine cannot load; the old configuration then serves again.
        """
        async with self._changing_child:
            old = self._settings
            await self._retire_child(settings.server.drain_s)
            self.apply_live(settings)
            try:
                await self._load(settings)
            except EngineLoadError as error:
                logger.error("the new engine configuration does not load, going back to the old one: %s", error)
                self.apply_live(old)
                await self._load_or_leave_to_supervise(old)
                raise

    def apply_live(self, settings: Settings) -> None:
        """Take over ``settings``; a child that already runs keeps its own until it is replaced or restarted."""
        self._settings = settings
        self._policy.max_restarts = settings.daemon.engine_max_restarts
        self._policy.window_s = settings.daemon.engine_restart_window_s

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let running ones finish for up to ``timeout_s``, then cancel them."""
        self._draining = True
        for tracked in self._requests.unsent():
            self._requests.fail(tracked, "unavailable", _SHUTTING_DOWN)
        if await self._requests.wait_until(lambda: len(self._requests) == 0, timeout_s):
            return
        logger.warning("cancelling %d requests that did not finish within server.drain_s", len(self._requests))
        for tracked in self._requests.sent():
            self._current_child().send(CancelRequest(tracked.request.request_id))
        await self._requests.wait_until(lambda: len(self._requests) == 0, _CANCEL_GRACE_S)
        self._requests.fail_all("unavailable", _SHUTTING_DOWN)

    async def stop(self) -> None:
        """End the child; ``drain`` first to spare requests."""
        self._draining = True
        self._serving = False
        if self._child is not None:
            await self._child.stop(_STOP_GRACE_S)

    def kill_child(self) -> None:
        """Last resort of an immediate exit."""
        if self._child is not None:
            self._child.kill_now()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        """See ``EngineClient.generate``."""
        if self._draining or self._phase == "failed":
            reason = _GAVE_UP if self._phase == "failed" else _SHUTTING_DOWN
            yield RequestFailed(request.request_id, "unavailable", reason)
            return
        tracked = self._requests.add(request)
        try:
            if self._serving:
                self._submit(tracked)
            while True:
                event = await tracked.events.get()
                yield event
                if isinstance(event, RequestFinished | RequestFailed):
                    return
        finally:
            if self._requests.remove(tracked) and tracked.sent:
                self._current_child().send(CancelRequest(request.request_id))

    def _current_child(self) -> EngineChild:
        assert self._child is not None, "start() comes first"
        return self._child

    def _submit(self, tracked: TrackedRequest) -> None:
        """Give a request to the child, unless its prompt was tokenised for another model than the child has."""
        assert self._info is not None, "only a ready child gets requests"
        if tracked.request.model_identity != self._info.model_identity:
            self._requests.fail(tracked, "unavailable", _MODEL_CHANGED)
            return
        self._current_child().send(tracked.for_submission(asyncio.get_running_loop().time()))
        tracked.sent = True

    async def _load(self, settings: Settings) -> None:
        """Start a child, wait until it is ready, give it what waits. The lock is held."""
        child = await EngineChild.launch(self._command, settings.model_dump_json().encode(), self._on_event)
        self._child = child
        try:
            self._info = await child.wait_ready(settings.daemon.load_timeout_s)
        except BaseException:
            await child.kill()
            raise
        self._heartbeat_s = asyncio.get_running_loop().time()
        self._phase = "ready"
        self._serving = True
        for tracked in self._requests.unsent():
            self._submit(tracked)

    async def _recover(self, how: str) -> None:
        """Load again until it works or the policy says no. The lock is held."""
        self._phase = "restarting"
        self._requests.child_crashed(_CRASHED)
        while (delay_s := self._policy.next_delay(asyncio.get_running_loop().time())) is not None:
            attempt = f"restart {self._policy.recent} of {self._policy.max_restarts}"
            logger.error("engine lost: %s | %s in %.1f s, %d requests kept", how, attempt, delay_s, len(self._requests))
            self._observer.engine_status(f"engine lost ({how}), {attempt}")
            await asyncio.sleep(delay_s)
            self._restarts += 1
            try:
                await self._load(self._settings)
            except EngineLoadError as error:
                how = str(error)
            else:
                logger.warning("engine restarted | %d requests resumed", len(self._requests))
                self._observer.engine_restarted()
                return
        self._give_up(how)

    def _give_up(self, how: str) -> None:
        self._phase = "failed"
        self._requests.fail_all("unavailable", _GAVE_UP)
        limit = f"{self._policy.max_restarts} restarts within {self._policy.window_s:g} s"
        raise EngineGaveUpError(f"giving up after {limit}; the last failure: {how}")

    async def _retire_child(self, drain_s: float) -> None:
        """Let the child finish what it has, then end it; what it could not start goes back to the queue."""
        self._serving = False
        self._phase = "restarting"
        self._observer.engine_status("replacing the engine: waiting for running requests")
        child = self._current_child()
        ended = asyncio.create_task(child.wait_ended())
        drained = asyncio.create_task(self._requests.wait_until(lambda: not self._requests.sent(), drain_s))
        await asyncio.wait({ended, drained}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, drained):
            task.cancel()
        await child.stop(_STOP_GRACE_S)
        self._requests.child_ended("unavailable", _REPLACED)

    async def _load_or_leave_to_supervise(self, settings: Settings) -> None:
        """Load; on failure leave the dead child in place, so that ``supervise`` recovers it with backoff."""
        try:
            await self._load(settings)
        except EngineLoadError as error:
            logger.error("the old engine configuration does not load either: %s", error)

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case Heartbeat(stats=stats):
                self._stats = stats
                self._heartbeat_s = asyncio.get_running_loop().time()
            case LoadProgress():
                self._observer.loading(event)
            case LogLine(level=level, logger=name, message=message):
                logging.getLogger(name).log(level, "%s", message)
            case EngineReady() | EngineFailed():
                pass  # the child keeps these for wait_ready and wait_ended
            case _:
                self._requests.deliver(event)
