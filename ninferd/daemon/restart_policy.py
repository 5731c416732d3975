"""How often and how soon a crashed engine is started again."""

from __future__ import annotations

from collections import deque

BACKOFF_BASE_S = 0.5
BACKOFF_LIMIT_S = 30.0


class RestartPolicy:
    """At most ``max_restarts`` within any ``window_s``, each after twice the wait of the one before it."""

    def __init__(self, max_restarts: int, window_s: float, backoff_base_s: float) -> None:
        self.max_restarts = max_restarts
        self.window_s = window_s
        self._backoff_base_s = backoff_base_s
        self._restarts: deque[float] = deque()

    def next_delay(self, now_s: float) -> float | None:
        """Count a restart at ``now_s`` (monotonic) and return the wait before it in seconds; None: give up."""
        while self._restarts and now_s - self._restarts[0] > self.window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self.max_restarts:
            return None
        delay = min(BACKOFF_LIMIT_S, self._backoff_base_s * 2.0 ** len(self._restarts))
        self._restarts.append(now_s)
        return delay

    @property
    def recent(self) -> int:
        """Restarts counted in the window, as of the last ``next_delay``."""
        return len(self._restarts)
