"""The tool that runs every kernel under compute-sanitizer, with a sanitizer and kernels of the test's own."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels_numba.nvidia import launch, table
from kernels_numba.nvidia.registry import BY_NAME
from kernels_numba.nvidia.self_test import OpGroup
from tools import sanitize_gpu


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script of that body on the PATH."""

    def install(body: str) -> None:
        script = tmp_path / "compute-sanitizer"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return install


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sanitize_gpu", *arguments])
    return sanitize_gpu.main()


def test_each_tool_runs_the_self_tests(
    sanitizer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sanitizer('echo "got $* caching=$PYTORCH_NO_CUDA_MEMORY_CACHING"')
    assert run(monkeypatch, "--groups", "norms") == 0
    memcheck, racecheck = (line for line in capfd.readouterr().out.splitlines() if line.startswith("got "))
    assert "--tool memcheck --error-exitcode 97 --report-api-errors no" in memcheck
    assert "--tool racecheck --error-exitcode 97 --racecheck-report analysis" in racecheck
    for line in (memcheck, racecheck):
        assert line.endswith("-m tools.sanitize_gpu --plain --groups norms caching=1")
        (pattern,) = re.findall(r"--kernel-name regex=(\S+)", line)
        assert all(re.search(pattern, name) for name in BY_NAME)
        assert not re.search(pattern, "at::native::vectorized_elementwise_kernel")


@pytest.mark.parametrize(("body", "status"), [("exit 97", 97), ("sleep 5", 1)], ids=["found", "slow"])
def test_what_a_tool_finds(
    body: str, status: int, sanitizer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the tools."""
    sanitizer(f'case "$*" in *racecheck*) {body};; esac')
    assert run(monkeypatch, "--timeout", "0.5") == status


def test_no_sanitizer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sanitize_gpu, "PLACES", ("nowhere/compute-sanitizer",))
    assert run(monkeypatch) == 2
    assert "compute-sanitizer is not on the PATH, nor at /nowhere/" in capsys.readouterr().err


class Kernel:
    """Stands for one on a device."""

    def __init__(self, name: str) -> None:
        self.spec = BY_NAME[name]

    def __call__(self, *arguments: Any) -> None:
        """Launch."""

    def bound(self, *arguments: Any) -> Callable[[], None]:
        return lambda: None


@pytest.mark.parametrize("way", ["called", "bound", "not at all", "wrongly"])
def test_kernels_must_be_launched_by_a_self_test_that_passes(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(_: torch.device) -> None:
        if way == "wrongly":
            raise ValueError("differs")
        kernel = Kernel("stream_read")
        if way == "called":
            kernel()
        elif way == "bound":
            kernel.bound()()

    device = SimpleNamespace(index=0, arch="sm_90", load=lambda names: None, label="a card")
    monkeypatch.setattr(launch, "device_of", lambda _: device)
    monkeypatch.setattr(launch, "Kernel", Kernel)
    monkeypatch.setattr(table, "GROUPS", (OpGroup("reading", ("stream_read",), {}, check),))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    passes = way in ("called", "bound")
    assert sanitize_gpu.launch_all(None) == (0 if passes else 1)
    printed = capsys.readouterr().out
    assert ("no self-test launches stream_read" in printed) == (not passes)
    assert ("reading: ValueError: differs" in printed) == (way == "wrongly")
    assert sanitize_gpu.launch_all(["other"]) == 0
