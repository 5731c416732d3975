"""What a changed configuration asks for: at once, a new engine child, or a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ninferd.config.describe import plain
from ninferd.config.field import Reload
from ninferd.config.keys import KEYS, KeySpec
from ninferd.config.schema import Settings

RESTART_REASONS: Mapping[str, str] = {
    "server.host": "the listening socket is bound once, at start",
    "server.port": "the listening socket is bound once, at start",
    "server.stats_port": "the stats socket is bound once, at start",
    "http.idle_keepalive_s": "the HTTP server takes its connection timeouts at start",
    "media.live_mib": "the media budget is reserved at start",
    "media.preprocess_threads": "the media threads are started once",
    "daemon.runtime_dir": "clients of the runtime files look where the daemon started with them",
    "request_log.path": "the request log belongs to one start of the daemon",
    "monitor.port": "the monitor binds its socket at its own start",
    "monitor.bind": "the monitor binds its socket at its own start",
}
"""Why each ``process`` key cannot change in a running daemon."""

_REASONS: Mapping[Reload, str] = {
    "live": "applies at once; a running request keeps what it started with",
    "engine": "the engine child is drained and replaced under the open listener",
}


@dataclass(frozen=True)
class Change:
    """One key whose value differs; values are plain TOML types, secrets redacted, None is unset."""

    key: str
    old: Any
    new: Any
    reload: Reload
    reason: str  # what a reload does with it, or why it cannot


@dataclass(frozen=True)
class ConfigDiff:
    """All changed keys by reload class, in the order of the schema."""

    live: tuple[Change, ...]
    engine: tuple[Change, ...]
    process: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.live or self.engine or self.process)

    def __iter__(self) -> Iterator[Change]:
        return iter((*self.live, *self.engine, *self.process))


def diff(old: Settings, new: Settings) -> ConfigDiff:
    """Keys whose values differ, secrets included."""
    changed = [spec for spec in KEYS.values() if spec.value(old) != spec.value(new)]

    def of(reload: Reload) -> tuple[Change, ...]:
        return tuple(change(spec, spec.value(old), spec.value(new)) for spec in changed if spec.reload == reload)

    return ConfigDiff(of("live"), of("engine"), of("process"))


def change(spec: KeySpec, old: Any, new: Any) -> Change:
    """A change of one key with the reason text of its class."""
    return Change(spec.name, plain(old), plain(new), spec.reload, reason_for(spec))


def reason_for(spec: KeySpec) -> str:
    """What a reload does with a changed value of the key, or why it cannot."""
    return RESTART_REASONS[spec.name] if spec.reload == "process" else _REASONS[spec.reload]
