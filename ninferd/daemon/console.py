"""Stderr as a stream of lines with at most one progress line below them."""

from __future__ import annotations

import shutil
import threading
from typing import TextIO

from ninferd.daemon.units import format_bytes
from ninferd.engine.messages import LoadProgress

_CLEAR_LINE = "\r\x1b[K"
_BAR_CELLS = 30
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """``text`` with ``\\xNN`` for control characters other than newline and tab.

    What a client or a model wrote must not drive the operator's terminal or overwrite a line of the log.
    """
    return text.translate(_CONTROL)


class Console:
    """One writer for logs and progress, so that a log record never lands in the middle of the bar."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._footer = ""
        self._lock = threading.Lock()

    def write_line(self, text: str) -> None:
        """Write one record (of one or more lines) above the footer."""
        with self._lock:
            if self._footer:
                self.stream.write(f"{_CLEAR_LINE}{text}\n{self._footer}")
            else:
                self.stream.write(f"{text}\n")
            self.stream.flush()

    def set_footer(self, text: str) -> None:
        """Replace the progress line; empty removes it. Only a terminal shows one."""
        with self._lock:
            if self.is_terminal and text != self._footer:
                self._footer = text
                self.stream.write(_CLEAR_LINE + text)
                self.stream.flush()


def progress_bar(progress: LoadProgress, columns: int | None = None) -> str:
    """``weights [#####-----] 50 %  1.0 GiB / 2.0 GiB``, cut to the width of the terminal."""
    width = shutil.get_terminal_size().columns if columns is None else columns
    if progress.total_bytes <= 0:
        return progress.stage[: width - 1]
    fraction = min(1.0, progress.done_bytes / progress.total_bytes)
    filled = int(fraction * _BAR_CELLS)
    bar = "#" * filled + "-" * (_BAR_CELLS - filled)
    amount = f"{format_bytes(progress.done_bytes)} / {format_bytes(progress.total_bytes)}"
    return f"{progress.stage} [{bar}] {int(fraction * 100)} %  {amount}"[: width - 1]


def progress_text(progress: LoadProgress) -> str:
    """Progress for STATUS= and the log: ``loading weights: 50 % of 2.0 GiB``."""
    action = "checking SHA-256" if progress.stage == "hash" else f"loading {progress.stage}"
    if progress.stage == "probe":
        return "loading probe: one token, after compiling the kernels that are new"
    if progress.total_bytes <= 0:
        return action
    percent = min(100, progress.done_bytes * 100 // progress.total_bytes)
    return f"{action}: {percent} % of {format_bytes(progress.total_bytes)}"
