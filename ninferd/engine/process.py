"""The engine child: ``python -m ninferd.engine.process --fd N``, N being an inherited end of a stream socket pair.

The first frame in is Configure. Out go LoadProgress, then EngineReady (after a probe) or EngineFailed; from then on
request events and heartbeats. The child ends on Shutdown, on end of file (the main process is gone), and with a
killed parent. It ignores SIGINT and SIGTERM, which reach the whole control group: stopping is the parent's decision.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

from pydantic import ValidationError

from ninferd.config.schema import Settings
from ninferd.engine import frames
from ninferd.engine.messages import Command, Configure, EngineEvent, EngineFailed, EngineReady, LogLine, Shutdown
from ninferd.errors import InputError, NinferError, one_line

EXIT_FAILED: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_RECEIVE_BYTES: Final = 1 << 16
_ORPHAN_GRACE_S: Final = 5.0  # for the loop to leave its step after the main process has gone


class Channel:
    """Sends events; frames of several threads do not mix. Blocks while the main process does not read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, events: Iterable[EngineEvent]) -> None:
        """Send in order; a vanished peer is ignored here, the reader notices it."""
        data = b"".join(map(frames.encode, events))
        if not data:
            return
        with self._lock:
            try:
                self._connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                return


class ForwardingHandler(logging.Handler):
    """Hands log records to the main process, which alone writes the log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send([LogLine(record.levelno, record.name, self.format(record))])


def read_commands(connection: socket.socket, commands: queue.SimpleQueue[Command], give_up: Callable[[], None]) -> None:
    """Thread: socket to queue. At the end of the stream asks the loop to stop and calls ``give_up`` if it does not."""
    decoder = frames.decode_commands()
    try:
        while data := connection.recv(_RECEIVE_BYTES):
            for command in decoder.feed(data):
                commands.put(command)
        decoder.close()
    except (OSError, frames.FrameError) as error:
        logging.getLogger(__name__).error("connection to the main process: %s", error)
    commands.put(Shutdown())
    timer = threading.Timer(_ORPHAN_GRACE_S, give_up)
    timer.daemon = True
    timer.start()


def serve(channel: Channel, commands: queue.SimpleQueue[Command]) -> int:
    """Load, report, run; the exit status."""
    command = commands.get()
    if isinstance(command, Shutdown):
        return 0
    try:
        settings = _settings_of(command)
        # torch loads here: a bad first frame is answered at once
        from ninferd.engine.build import build_engine, match_threads
        from ninferd.engine.loop import EngineLoop

        engine = build_engine(settings, lambda progress: channel.send([progress]))
        match_threads(engine.info)
        channel.send([EngineReady(engine.info)])
        EngineLoop(engine, commands, channel.send).run()
    except NinferError as error:
        channel.send([EngineFailed(one_line(str(error)))])
        return error.exit_status if isinstance(error, InputError) else EXIT_FAILED
    except Exception as error:
        logging.getLogger(__name__).exception("engine child")
        channel.send([EngineFailed(f"{type(error).__name__}: {error}")])
        return EXIT_FAILED
    return 0


def _settings_of(command: Command) -> Settings:
    """The configuration in the first frame; error texts never carry its values."""
    if not isinstance(command, Configure):
        raise frames.FrameError(f"the first frame must be configure, got {type(command).__name__}")
    try:
        return Settings.model_validate_json(command.settings_json)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        listed = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise frames.FrameError(f"settings from the main process: {listed}") from None


def main(argv: list[str] | None = None) -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(prog="ninferd.engine.process")
    parser.add_argument("--fd", type=int, required=True, help="inherited end of a stream socket pair")
    connection = socket.socket(fileno=parser.parse_args(argv).fd)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(connection)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[ForwardingHandler(channel)])
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    reader = threading.Thread(
        target=read_commands, args=(connection, commands, lambda: os._exit(EXIT_FAILED)), name="reader", daemon=True
    )
    reader.start()
    return serve(channel, commands)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even while a step hangs."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


if __name__ == "__main__":
    sys.exit(main())
