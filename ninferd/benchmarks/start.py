"""How long a start takes: an engine's phases, and the daemon from its process to its READY."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from ninferd.benchmarks.page_cache import drop, planned_load, read_seconds, weight_files
from ninferd.benchmarks.results import Figure, Skipped, percent
from ninferd.benchmarks.subject import is_synthetic
from ninferd.errors import InputError, NinferError
from ninferd.weights.locate import artifact_path

LONGEST_S: Final = 1800.0
"""A first start compiles kernels, which takes minutes."""
STOP_S: Final = 60.0


@dataclass(frozen=True)
class StartOptions:
    """What is started."""

    artifact: str
    device: str | int
    kv_dtype: str
    lanes: int
    context_tokens: int
    cold: bool  # the files are read from disk


class StartFigure(Figure, frozen=True):
    """One phase; ``bytes`` are weights loaded, caches allocated or memory of graphs."""

    phase: str
    seconds: float
    since_start_s: float
    bytes: int | None = None
    bytes_per_s: float | None = None
    share_of_file_read: float | None = None  # of one thread that reads the same files

    COLUMNS: ClassVar = (
        ("phase", -30),
        ("seconds", 8),
        ("since start", 11),
        ("GB", 9),
        ("GB/s", 7),
        ("of reading the file", 19),
    )

    def cells(self) -> Sequence[str]:
        return (
            self.phase,
            f"{self.seconds:.3f}",
            f"{self.since_start_s:.3f}",
            "" if self.bytes is None else f"{self.bytes / 1e9:.3f}",
            "" if self.bytes_per_s is None else f"{self.bytes_per_s / 1e9:.2f}",
            percent(self.share_of_file_read),
        )


def measure_start(options: StartOptions, dtype: torch.dtype) -> Iterator[StartFigure | Skipped]:
    """The phases of an engine in a process of its own, then the daemon as systemd would start it.

    InputError for a model that has no files.
    """
    if is_synthetic(options.artifact):
        raise InputError(
            f"{options.artifact}: a start loads files; make some with ninferd model synth, and give their path"
        )
    files = weight_files(planned_load(artifact_path(options.artifact), dtype))
    size = sum(path.stat().st_size for path in files)
    if options.cold:
        drop(files)
    else:
        read_seconds(files)
    seconds = read_seconds(files)
    state = "not in the page cache" if options.cold else "in the page cache"
    yield StartFigure(f"reading the files, {state}", seconds, seconds, size, size / seconds)
    if options.cold:
        drop(files)
    yield from _phases(options, size / seconds)
    if options.cold:
        drop(files)
    ready = _daemon_seconds(options)
    yield StartFigure("daemon, process to READY", ready, ready)


def _phases(options: StartOptions, file_bytes_per_s: float) -> Iterator[StartFigure]:
    command = [sys.executable, "-m", "ninferd.benchmarks.start_child", options.artifact]
    command += ["--device", str(options.device), "--kv-dtype", options.kv_dtype]
    command += ["--lanes", str(options.lanes), "--context", str(options.context_tokens)]
    started = before = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                found: dict[str, Any] = json.loads(line)
                if "problem" in found:
                    raise (InputError if found["status"] == InputError.exit_status else NinferError)(found["problem"])
                seconds, size = found["at_s"] - before, found["bytes"]
                rate = size / seconds if found["phase"] == "weights" else None
                share = None if rate is None else rate / file_bytes_per_s
                yield StartFigure(found["phase"], seconds, found["at_s"] - started, size, rate, share)
                before = found["at_s"]
        except BaseException:
            child.terminate()  # nobody waits for it any more
            raise
    if child.returncode:
        raise NinferError(f"the engine did not start: exit status {child.returncode}")


def _daemon_seconds(options: StartOptions) -> float:
    """From the start of its process to the READY that systemd waits for."""
    with tempfile.TemporaryDirectory(prefix="ninferd-bench-") as directory:
        config = Path(directory, "ninferd.toml")
        config.touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(str(Path(directory, "notify")))
            notified.settimeout(LONGEST_S)
            environment = os.environ | {"NOTIFY_SOCKET": str(Path(directory, "notify"))}
            settings = {
                "daemon.runtime_dir": json.dumps(directory),
                "server.port": str(_free_port()),
                "engine.device": json.dumps(options.device),
                "engine.kv_dtype": json.dumps(options.kv_dtype),
                "engine.max_concurrency": str(options.lanes),
                "engine.max_context": str(options.context_tokens),
                "engine.kv_capacity": str(options.lanes * options.context_tokens),
            }
            return _ready_seconds(_run_command(options.artifact, config, settings), environment, notified)


def _run_command(artifact: str, config: Path, settings: Mapping[str, str]) -> list[str]:
    code = "import sys; from ninferd.cli import main; sys.exit(main())"
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-c", code, "run", artifact, "--config", str(config), *pairs]


def _ready_seconds(command: list[str], environment: Mapping[str, str], notified: socket.socket) -> float:
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as daemon,
    ):
        try:
            notified.settimeout(0.5)
            while True:
                try:
                    message = notified.recv(1 << 16)
                except TimeoutError:
                    message = b""
                if b"READY=1" in message.split(b"\n"):
                    return time.monotonic() - started
                if daemon.poll() is not None or time.monotonic() - started > LONGEST_S:
                    log.seek(0)
                    raise NinferError(f"the daemon was not ready: {_problem(log.read().decode(errors='replace'))}")
        finally:
            daemon.terminate()
            try:
                daemon.wait(STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _problem(log: str) -> str:
    """What a daemon that ended complained of last, or its last line."""
    lines = log.strip().splitlines() or ["it said nothing"]
    return next((line for line in reversed(lines) if " ERROR " in line or " CRITICAL " in line), lines[-1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
