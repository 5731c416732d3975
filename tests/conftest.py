"""What every test relies on of the process it runs in."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
