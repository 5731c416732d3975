"""Phases of a start, and what it says of one that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ninferd.benchmarks import start
from ninferd.benchmarks.page_cache import drop, planned_load, read_seconds, weight_files
from ninferd.benchmarks.start import StartFigure, StartOptions, measure_start
from ninferd.errors import InputError, NinferError
from ninferd.weights.locate import artifact_path

PHASES = [
    "interpreter",
    "imports",
    "device",
    "kernels and self-test",
    "weights",
    "caches and probe",
    "rounds of all lanes",
]


def options(artifact: str, *, cold: bool = False) -> StartOptions:
    return StartOptions(artifact, "cpu", "fp32", lanes=2, context_tokens=256, cold=cold)


def test_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins where the one before ends; the daemon is started on its own."""
    monkeypatch.setattr(start, "_daemon_seconds", lambda options: 12.0)
    reading, *phases, daemon = measure_start(options("embedded:ninfer-tiny"), torch.float32)
    assert isinstance(reading, StartFigure)
    assert reading.phase == "reading the files, in the page cache"
    assert reading.bytes == artifact_path("embedded:ninfer-tiny").stat().st_size
    assert daemon == StartFigure("daemon, process to READY", 12.0, 12.0)
    begun, by_name = 0.0, {}
    for phase in phases:
        assert isinstance(phase, StartFigure)
        by_name[phase.phase] = phase
        assert phase.since_start_s == pytest.approx(begun + phase.seconds)
        begun = phase.since_start_s
    assert list(by_name) == PHASES
    weights = by_name["weights"]
    assert weights.bytes is not None
    assert weights.bytes_per_s is not None
    assert weights.bytes_per_s == pytest.approx(weights.bytes / weights.seconds)
    assert reading.bytes_per_s is not None
    assert weights.share_of_file_read == pytest.approx(weights.bytes_per_s / reading.bytes_per_s)
    assert by_name["caches and probe"].bytes


def test_files_are_forgotten_before_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def noted(step: str, result: Any = None) -> Callable[..., Any]:
        def call(*_: object) -> Any:
            steps.append(step)
            return result

        return call

    monkeypatch.setattr(start, "drop", noted("drop"))
    monkeypatch.setattr(start, "read_seconds", noted("read", 1.0))
    monkeypatch.setattr(start, "_phases", noted("engine", ()))
    monkeypatch.setattr(start, "_daemon_seconds", noted("daemon", 1.0))
    reading, _ = measure_start(options("embedded:ninfer-tiny", cold=True), torch.float32)
    assert isinstance(reading, StartFigure)
    assert reading.phase == "reading the files, not in the page cache"
    assert steps == ["drop", "read", "drop", "engine", "drop", "daemon"]


def test_the_daemon_is_ready() -> None:
    assert start._daemon_seconds(options("embedded:ninfer-tiny")) > 0


def test_a_daemon_that_refuses_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(NinferError, match=r"^the daemon was not ready: .*does not exist"):
        start._daemon_seconds(options(str(tmp_path / "nothing.ninfer")))


def test_an_engine_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NinferError, match=r"^the engine did not start: exit status 1$"):
        list(start._phases(options("embedded:ninfer-tiny"), 1.0))


def test_a_model_without_files() -> None:
    with pytest.raises(InputError, match=r"^synthetic:qwen3\.8-27b: a start loads files; make some"):
        next(measure_start(options("synthetic:qwen3.8-27b"), torch.float32))


def test_files_of_a_model() -> None:
    path = artifact_path("embedded:ninfer-tiny")
    files = weight_files(planned_load(path, torch.float32))
    assert files == [path]
    drop(files)
    assert read_seconds(files) > 0
