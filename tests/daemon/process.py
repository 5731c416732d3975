"""A real daemon in a child process, with a notify socket in place of systemd."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from ninferd.weights.locate import artifact_path
from tests.daemon.http_client import WAIT_S, ChatClient

NINFERD = Path(sys.executable).with_name("ninferd")


class DaemonProcess(ChatClient):
    """``ninferd run`` over a configuration of its own; use as a context manager."""

    def __init__(
        self, directory: Path, config: str, env: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(free_port() if port is None else port, model="endless")
        self.config = directory / "ninferd.toml"
        self.write_config(config)
        self.runtime_dir = directory / "run"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(directory / "notify"))
        self._datagrams: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.notified: list[str] = []
        self._process = subprocess.Popen(
            [NINFERD, "run", "--config", self.config, "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment(directory), **(env or {})},
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        # Always read, as PID 1 does: a full socket would hold up the daemon.
        threading.Thread(target=self._read_notify, daemon=True).start()

    def _environment(self, directory: Path) -> dict[str, str]:
        return {
            "NOTIFY_SOCKET": str(directory / "notify"),
            "RUNTIME_DIRECTORY": str(self.runtime_dir),
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_notify(self) -> None:
        with self._notify:
            while datagram := self._notify.recv(1 << 16):
                self._datagrams.put(datagram.decode())

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._notify.shutdown(socket.SHUT_RDWR)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write_config(self, text: str) -> None:
        self.config.write_text(text)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_log(self, text: str) -> str:
        """The next line of the log with ``text`` in it."""
        while True:
            line = self._lines.get(timeout=WAIT_S)
            assert line is not None, f"the daemon ended without saying {text!r}:\n" + "\n".join(self.log)
            self.log.append(line)
            if text in line:
                return line

    def wait_notify(self, text: str) -> str:
        """The next datagram with ``text`` in it; the ones before it are kept in ``notified``."""
        while True:
            datagram = self._datagrams.get(timeout=WAIT_S)
            self.notified.append(datagram)
            if text in datagram:
                return datagram

    def wait_exit(self) -> int:
        return self._process.wait(WAIT_S)

    def drain_log(self) -> str:
        """The rest of the log of a daemon that has ended, after what was waited for."""
        while (line := self._lines.get(timeout=WAIT_S)) is not None:
            self.log.append(line)
        return "\n".join(self.log)

    @property
    def child_pid(self) -> int:
        """The engine child."""
        return only_child(self.pid)


def only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def endless_model(path: Path) -> Path:
    """The embedded artifact with end tokens that it never produces, so that a stream lasts as long as asked for."""
    content = artifact_path("embedded:ninfer-tiny").read_bytes()
    ends = re.compile(rb'("eos_token_id": \[\s*)4065(,\s*)4063(\s*\])')
    changed, count = ends.subn(rb"\g<1>4095\g<2>4094\g<3>", content)
    assert count == 1
    path.write_bytes(changed)
    return path
