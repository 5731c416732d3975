"""Progress of a command that reads or writes a model."""

from __future__ import annotations

import sys

PLAIN_STEP_PERCENT = 10


class Progress:
    """A bar on a terminal, a line for every tenth otherwise; both on standard error."""

    def __init__(self, stage: str) -> None:
        from ninferd.daemon.console import Console

        self._stage = stage
        self._console = Console(sys.stderr)
        self._shown_percent = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        from ninferd.daemon.console import progress_bar
        from ninferd.daemon.units import format_bytes
        from ninferd.engine.messages import LoadProgress

        if self._console.is_terminal:
            is_done = done_bytes >= total_bytes
            bar = "" if is_done else progress_bar(LoadProgress(self._stage, done_bytes, total_bytes))
            self._console.set_footer(bar)
            return
        percent = done_bytes * 100 // max(total_bytes, 1)
        if percent >= self._shown_percent + PLAIN_STEP_PERCENT:
            self._shown_percent = percent - percent % PLAIN_STEP_PERCENT
            self._console.write_line(f"{self._stage}: {self._shown_percent} % of {format_bytes(total_bytes)}")
