"""How calls are repeated and set against each other, with a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest
import torch

from ninferd.benchmarks import timing

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass, moved by the calls that are timed."""
    now = [100.0]
    monkeypatch.setattr("ninferd.benchmarks.timing.time.perf_counter", lambda: now[0])
    return now


def test_seconds_of_one_call(clock: list[float]) -> None:
    """Two calls of 2 and 4 ms: 3 ms on average, however often they run."""

    def takes(seconds: float) -> None:
        clock[0] += seconds

    calls = [lambda: takes(0.002), lambda: takes(0.004)]
    found = timing.seconds_per_call(calls, CPU)
    assert found.seconds == pytest.approx(0.003)
    assert not found.captured


def test_short_calls_are_repeated(clock: list[float]) -> None:
    turns = itertools.count()

    def call() -> None:
        next(turns)
        clock[0] += timing.CPU_PASS_S / 50

    assert timing.seconds_per_call([call], CPU).seconds == pytest.approx(timing.CPU_PASS_S / 50)
    assert next(turns) > 40 * timing.REPLAYS


def test_one_slow_pass_does_not_count(clock: list[float]) -> None:
    turns = itertools.count()

    def call() -> None:
        clock[0] += 5.0 if next(turns) == 4 else 0.02

    assert timing.seconds_per_call([call], CPU).seconds == pytest.approx(0.02)


def test_every_call_is_timed(clock: list[float]) -> None:
    turns = itertools.count(1)

    def call() -> None:
        clock[0] += next(turns)

    assert timing.replay_seconds(call, 3, CPU) == pytest.approx([1, 2, 3])


def test_host_seconds(clock: list[float]) -> None:
    def call() -> None:
        clock[0] += 5e-6

    assert timing.host_seconds(call, CPU) == pytest.approx(5e-6)
