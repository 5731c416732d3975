"""One engine child process and its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from ninferd.engine import frames
from ninferd.engine.messages import Command, Configure, EngineEvent, EngineFailed, EngineInfo, EngineReady, Shutdown
from ninferd.errors import InputError, NinferError

ENGINE_COMMAND = (sys.executable, "-m", "ninferd.engine.process")

_READ_BYTES = 1 << 16
_EXIT_GRACE_S = 5.0  # between the end of the socket and the end of the process


class EngineLoadError(NinferError):
    """The engine child did not become ready; the message says why."""

    exit_status: ClassVar[int] = 3


class EngineInputError(EngineLoadError):
    """The engine child refuses its model or configuration: trying again cannot help."""

    exit_status: ClassVar[int] = InputError.exit_status


class EngineChild:
    """A running child. ``on_event`` sees every frame it sends, in order, on the event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._failure = ""
        self._ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(self._receive())

    @classmethod
    async def launch(
        cls, command: Sequence[str], settings_json: bytes, on_event: Callable[[EngineEvent], None]
    ) -> EngineChild:
        """Start ``command --fd N`` and send it its configuration. Raises EngineLoadError if the system refuses."""
        try:
            process, ours = await cls._spawn(command)
            reader, writer = await asyncio.open_connection(sock=ours)
        except OSError as error:
            raise EngineLoadError(f"the engine cannot be started: {error}") from error
        child = cls(process, reader, writer, on_event)
        child.send(Configure(settings_json))
        return child

    @staticmethod
    async def _spawn(command: Sequence[str]) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """A process and our end of the socket to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, ExitStack() as on_failure:
            on_failure.enter_context(ours)
            process = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=child_environment(os.environ),
                process_group=0,  # a Ctrl-C on the terminal is for the main process alone
            )
            on_failure.pop_all()
        return process, ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Queue one frame for the child; lost silently if the child is gone (its end is reported by ``wait_ended``)."""
        if not self._writer.is_closing():
            self._writer.write(frames.encode(command))

    async def wait_ready(self, timeout_s: float) -> EngineInfo:
        """Facts of the loaded engine. Raises EngineLoadError if it ends, or is not ready in time.

        EngineInputError if it ends because what it was given cannot be used.
        """
        either: set[asyncio.Future[Any]] = {self._ready, self._pump}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        if self._pump.done():
            is_refused = self._process.returncode == InputError.exit_status
            raise (EngineInputError if is_refused else EngineLoadError)(self._pump.result())
        raise EngineLoadError(f"the engine was not ready within daemon.load_timeout_s = {timeout_s:g} s")

    async def wait_ended(self) -> str:
        """Wait for the process to be gone; returns how it went, for the log."""
        return await asyncio.shield(self._pump)

    async def stop(self, grace_s: float) -> None:
        """Ask the child to shut down, kill it if it has not after ``grace_s``, and reap it."""
        self.send(Shutdown())
        try:
            await asyncio.wait_for(self.wait_ended(), grace_s)
        except TimeoutError:
            await self.kill()

    def kill_now(self) -> None:
        """SIGKILL without waiting."""
        if self._process.returncode is None:
            self._process.kill()

    async def kill(self) -> None:
        """SIGKILL and reap."""
        self.kill_now()
        await self.wait_ended()

    async def _receive(self) -> str:
        try:
            await self._dispatch_frames()
        except frames.FrameError as error:
            self._failure = self._failure or f"broke the protocol: {error}"
        except OSError:
            pass  # a killed child resets the connection; its exit status says what happened
        finally:
            self._writer.close()
        status = await self._reap()
        return f"{self._failure} ({status})" if self._failure else f"the engine {status}"

    async def _dispatch_frames(self) -> None:
        decoder = frames.decode_events()
        while data := await self._reader.read(_READ_BYTES):
            for event in decoder.feed(data):
                if isinstance(event, EngineReady) and not self._ready.done():
                    self._ready.set_result(event.info)
                elif isinstance(event, EngineFailed):
                    self._failure = event.message
                self._on_event(event)
        decoder.close()

    async def _reap(self) -> str:
        try:
            code = await asyncio.wait_for(self._process.wait(), _EXIT_GRACE_S)
        except TimeoutError:
            self.kill_now()
            code = await self._process.wait()
        return describe_exit(code)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: it does not speak to systemd, holds no configuration of its own, and numbers devices
    as NVML does."""
    kept = {name: value for name, value in env.items() if not name.startswith(("NINFERD_", "WATCHDOG_"))}
    kept.pop("NOTIFY_SOCKET", None)
    return kept | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def describe_exit(code: int) -> str:
    """Exit status of a process in words; negative is a signal."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
