"""What the service manager is told (sd_notify(3)); silent where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from sdnotify import SystemdNotifier


class ServiceNotifier:
    """Builds the datagrams of one daemon. ``send`` takes one state string of ``KEY=VALUE`` lines."""

    def __init__(self, send: Callable[[str], None], watchdog_interval_s: float | None = None) -> None:
        self._send = send
        self.watchdog_interval_s = watchdog_interval_s
        """Seconds between ``watchdog`` calls: half of what systemd allows; None: it does not watch this process."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> ServiceNotifier:
        """Talk to ``NOTIFY_SOCKET`` where systemd set one."""
        if not env.get("NOTIFY_SOCKET"):
            return cls(lambda _state: None)
        return cls(SystemdNotifier().notify, watchdog_interval(env, os.getpid()))

    def ready(self, status: str) -> None:
        """Started, or done with a reload."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_one_line(status)}")

    def extend_timeout(self, seconds: float) -> None:
        """Start, reload or stop is alive and may take this much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def reloading(self) -> None:
        """A reload begins; systemd 253+ needs the time stamp to match it with its request."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")


def watchdog_interval(env: Mapping[str, str], pid: int) -> float | None:
    """Half of ``WATCHDOG_USEC`` in seconds, or None where it is absent, unreadable or meant for another process."""
    try:
        limit_us = int(env.get("WATCHDOG_USEC", "0"))
        watched_pid = int(env.get("WATCHDOG_PID", pid))
    except ValueError:
        return None
    return limit_us / 2_000_000 if limit_us > 0 and watched_pid == pid else None


def _one_line(text: str) -> str:
    """A newline would start another field, and sdnotify drops a datagram that is not Latin-1."""
    return " ".join(text.split()).encode("ascii", "replace").decode()
