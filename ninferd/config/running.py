"""The effective configuration of a running daemon, left in its runtime directory for ``ninferd config diff``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ninferd.config.atomic import write_atomically
from ninferd.config.describe import plain
from ninferd.config.files import is_missing, read_bounded
from ninferd.config.keys import ENV_PREFIX, KEYS
from ninferd.config.layers import ConfigSources, ResolvedConfig
from ninferd.config.origin import ConfigError, Problem
from ninferd.config.reload import Change, change
from ninferd.config.schema import Settings

FILE_NAME = "effective.json"
_FILE_MODE = 0o640
_SECRET_VARIABLES = frozenset(spec.env for spec in KEYS.values() if spec.secret)


class RunningSources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``ConfigSources`` of the daemon, less secret variables: what its next reload will read."""

    base_file: str
    profile: str | None
    profiles_dir: str
    conf_dir: str
    env: dict[str, str]
    overrides: tuple[tuple[str, str], ...]
    base_file_required: bool

    def to_sources(self) -> ConfigSources:
        return ConfigSources(
            base_file=Path(self.base_file),
            profile=self.profile,
            profiles_dir=Path(self.profiles_dir),
            conf_dir=Path(self.conf_dir),
            env=self.env,
            overrides=self.overrides,
            base_file_required=self.base_file_required,
        )


class RunningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the daemon runs with. ``values`` has every key; secrets are redacted, null is unset."""

    pid: int
    process_started_unix_s: float
    generation: int  # 1 at start, +1 per applied reload
    profile: str | None
    values: dict[str, Any]
    pending_restart: dict[str, str]  # key -> why a reload could not apply it
    sources: RunningSources

    def changes_to(self, settings: Settings) -> list[Change]:
        """Keys whose value would differ under ``settings``. Secrets are not compared: they are not recorded here."""
        wanted = ((spec, plain(spec.value(settings))) for spec in KEYS.values() if not spec.secret)
        return [change(spec, self.values[spec.name], new) for spec, new in wanted if self.values[spec.name] != new]

    def is_alive(self) -> bool:
        """Whether the process that wrote this still runs; a reused pid does not count."""
        try:
            return bool(psutil.Process(self.pid).create_time() == self.process_started_unix_s)
        except psutil.Error:
            return False


def write_running(path: Path, resolved: ResolvedConfig, generation: int, pending: Iterable[Change]) -> None:
    """Write the effective configuration of this process atomically, mode 0640.

    ``resolved`` is the configuration last loaded; keys in ``pending`` still run with their old value. Raises OSError.
    """
    waiting = tuple(pending)
    values = {name: plain(spec.value(resolved.settings)) for name, spec in KEYS.items()}
    values.update((change.key, change.old) for change in waiting)
    running = RunningConfig(
        pid=os.getpid(),
        process_started_unix_s=psutil.Process().create_time(),
        generation=generation,
        profile=resolved.profile,
        values=values,
        pending_restart={change.key: change.reason for change in waiting},
        sources=_record(resolved.sources),
    )
    write_atomically(path, msgspec.json.format(msgspec.json.encode(running)) + b"\n", _FILE_MODE)


def read_running(path: Path) -> RunningConfig | None:
    """Of the daemon that runs now; None without a file or when its writer is gone. Raises ConfigError."""
    if is_missing(path):
        return None
    try:
        running = msgspec.json.decode(read_bounded(path), type=RunningConfig)
    except msgspec.DecodeError as error:
        raise ConfigError([Problem(str(path), None, f"not written by this version of ninferd: {error}")]) from error
    return running if running.is_alive() else None


def _record(sources: ConfigSources) -> RunningSources:
    relevant = {
        name: value
        for name, value in sources.env.items()
        if (name.startswith(ENV_PREFIX) and name not in _SECRET_VARIABLES) or name == "RUNTIME_DIRECTORY"
    }
    return RunningSources(
        base_file=str(sources.base_file.absolute()),
        profile=sources.profile,
        profiles_dir=str(sources.profiles_dir.absolute()),
        conf_dir=str(sources.conf_dir.absolute()),
        env=relevant,
        overrides=sources.overrides,
        base_file_required=sources.base_file_required,
    )
