"""Ending a command that writes files from outside: what it has begun is removed before it goes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)  # the system stops, the terminal is closed; Ctrl-C is an exception by itself


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Within, a signal that would end the process at once is a SystemExit with the status of that signal.

    One that is ignored (``nohup``) stays so. Only for the main thread.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {each: signal.getsignal(each) for each in ENDING}
    for each, handler in previous.items():
        if handler is signal.SIG_DFL:
            signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
