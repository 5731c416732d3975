"""What the HTTP layer needs from the daemon.

Everything that a reload can replace is a function, so a handler asks once at its start and keeps what it got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ninferd.api.errors import refusal_of_state
from ninferd.api.limits import InFlightRequests
from ninferd.chat.frontend import ChatFrontend
from ninferd.config.schema import Settings
from ninferd.config.secrets import ApiKeys
from ninferd.engine.client import EngineClient
from ninferd.engine.messages import EngineInfo


@dataclass(frozen=True)
class ConfigStatus:
    """Where the running configuration stands against its files."""

    generation: int = 1
    profile: str | None = None
    last_reload_unix_ms: int = 0
    last_reload_error: str | None = None
    pending_restart: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApiContext:
    """``frontend`` is asked only once the engine has been ready; the others at any time."""

    engine: EngineClient
    settings: Callable[[], Settings]
    frontend: Callable[[], ChatFrontend]
    api_keys: Callable[[], ApiKeys]
    config_status: Callable[[], ConfigStatus]
    in_flight: InFlightRequests = field(default_factory=InFlightRequests)

    def serving_engine(self) -> EngineInfo:
        """Facts of the engine that requests can be given to (during a restart they wait); raises ApiError if none."""
        info, state = self.engine.info, self.engine.state
        if info is None and state != "failed":
            state = "loading"
        refusal = refusal_of_state(state)
        if refusal is not None:
            raise refusal
        assert info is not None
        return info

    def max_in_flight(self) -> int:
        """Generation requests held at once: running and waiting."""
        settings = self.settings()
        return settings.engine.max_concurrency + settings.queue.max_pending
