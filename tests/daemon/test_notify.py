from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from ninferd.daemon.notify import ServiceNotifier, watchdog_interval


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def notifier(sent: list[str]) -> ServiceNotifier:
    return ServiceNotifier(sent.append)


def test_datagrams_reach_the_socket_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        server.settimeout(10)
        notifier = ServiceNotifier.from_environment({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "4000000"})
        notifier.ready("serving")
        assert server.recv(1024) == b"READY=1\nSTATUS=serving"
    assert notifier.watchdog_interval_s == 2.0


def test_silent_without_a_service_manager() -> None:
    notifier = ServiceNotifier.from_environment({"WATCHDOG_USEC": "4000000"})
    notifier.ready("nobody listens")
    assert notifier.watchdog_interval_s is None


def test_reload_carries_the_monotonic_time(notifier: ServiceNotifier, sent: list[str]) -> None:
    before_us = time.monotonic_ns() // 1000
    notifier.reloading()
    first, second = sent[0].split("\n")
    assert first == "RELOADING=1"
    assert before_us <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_states(notifier: ServiceNotifier, sent: list[str]) -> None:
    notifier.status("loading")
    notifier.extend_timeout(1.5)
    notifier.stopping("draining")
    notifier.watchdog()
    assert sent == ["STATUS=loading", "EXTEND_TIMEOUT_USEC=1500000", "STOPPING=1\nSTATUS=draining", "WATCHDOG=1"]


def test_status_stays_one_line_that_sdnotify_can_encode(notifier: ServiceNotifier, sent: list[str]) -> None:
    notifier.status("two\nlines → arrow\nREADY=1")
    assert sent == ["STATUS=two lines ? arrow READY=1"]


@pytest.mark.parametrize(
    ("env", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(env: dict[str, str], interval: float | None) -> None:
    assert watchdog_interval(env, pid=42) == interval
