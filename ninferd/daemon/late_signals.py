"""Signals that have a meaning once the daemon runs, and would end a process that does not know them yet."""

from __future__ import annotations

import signal

_LATE_SIGNALS = (signal.SIGHUP, signal.SIGUSR1)


def hold_late_signals() -> None:
    """Keep those that arrive from now on for ``release_late_signals``; call before anything slow."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _LATE_SIGNALS)


def release_late_signals() -> None:
    """Their handlers are installed: deliver what was kept."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LATE_SIGNALS)
