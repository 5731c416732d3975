"""The loop thread around an engine: commands in, events out, a heartbeat that proves progress."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ninferd.engine.engine import Engine
from ninferd.engine.messages import (
    CancelRequest,
    Command,
    Configure,
    EngineEvent,
    GenerationRequest,
    Heartbeat,
    Shutdown,
)

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.5

Emit = Callable[[Iterable[EngineEvent]], None]


class EngineLoop:
    """Owns the engine; everything that touches it happens inside ``run``.

    A heartbeat is sent between steps, at least every 0.5 s as long as single steps are shorter than that. The events of
    a step are sent while the device works on the next one, or at once where it does not.
    """

    def __init__(self, engine: Engine, commands: queue.SimpleQueue[Command], emit: Emit) -> None:
        self._engine = engine
        self._commands = commands
        self._emit = emit
        self._held: Sequence[EngineEvent] = ()
        self._next_heartbeat_s = time.monotonic()

    def run(self) -> None:
        """Serve until Shutdown; what still runs is then cancelled. EngineBroken passes through."""
        while self._take_commands():
            if self._engine.has_work:
                try:
                    self._held = self._engine.step(self._send)
                except Exception:
                    self._send()
                    self._emit(self._engine.drain_events())
                    raise
            if not self._engine.has_work:
                self._send()
            self._beat()
        self._engine.cancel_all()
        while self._engine.has_work:
            self._held = self._engine.step(self._send)
        self._send()

    def _send(self) -> None:
        held, self._held = self._held, ()
        self._emit(held)

    def _take_commands(self) -> bool:
        """Apply what has arrived, waiting for it while there is no work; False after Shutdown."""
        timeout_s = 0.0 if self._engine.has_work else max(0.0, self._next_heartbeat_s - time.monotonic())
        try:
            command = self._commands.get(block=timeout_s > 0.0, timeout=timeout_s)
            while not isinstance(command, Shutdown):
                self._apply(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _apply(self, command: Command) -> None:
        match command:
            case GenerationRequest():
                self._submit(command)
            case CancelRequest():
                self._engine.cancel(command.request_id)
            case Configure() | Shutdown():
                logger.error("%s is not expected while the engine serves", type(command).__name__)

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._engine.submit(request)
        except ValueError as error:  # a second request of the same id: the first keeps it
            logger.error("request refused: %s", error)

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_heartbeat_s:
            self._emit([Heartbeat(self._engine.stats())])
            self._next_heartbeat_s = now_s + HEARTBEAT_S
