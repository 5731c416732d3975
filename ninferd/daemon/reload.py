"""SIGHUP: load everything, then apply all of it or keep the old configuration whole."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from ninferd.chat.frontend import ChatFrontend
from ninferd.config.describe import value_text
from ninferd.config.layers import ConfigSources
from ninferd.config.origin import ConfigError
from ninferd.config.reload import Change, ConfigDiff, diff
from ninferd.config.schema import Settings
from ninferd.config.secrets import load_api_keys
from ninferd.daemon.serving import Serving, load_config, load_frontend
from ninferd.engine.messages import EngineInfo
from ninferd.errors import NinferError, one_line

logger = logging.getLogger(__name__)

COALESCE_S = 1.0  # signals within this time of the first are one reload


class ReplaceableEngine(Protocol):
    """The supervisor, as far as a reload changes it."""

    @property
    def info(self) -> EngineInfo | None: ...

    async def replace(self, settings: Settings) -> None: ...

    def apply_live(self, settings: Settings) -> None: ...


class ReloadObserver(Protocol):
    """Who is told that a reload begins and how it ended."""

    def reload_started(self) -> None: ...

    def reload_finished(self, serving: Serving) -> None: ...


class Reloader:
    """Holds what is served now (``current``) and replaces it by one assignment."""

    def __init__(
        self,
        sources: ConfigSources,
        serving: Serving,
        engine: ReplaceableEngine,
        preflight: Callable[[Settings], None],
        observer: ReloadObserver,
        coalesce_s: float = COALESCE_S,
    ) -> None:
        self.current = serving
        self._sources = sources
        self._engine = engine
        self._preflight = preflight  # raises NinferError where an engine configuration cannot run here
        self._observer = observer
        self._coalesce_s = coalesce_s
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Ask for a reload; the signal handler."""
        self._requested.set()

    async def run(self) -> None:
        """Serve requests for reloads until cancelled. One that comes during a reload starts another after it."""
        while True:
            await self._requested.wait()
            self._observer.reload_started()
            await asyncio.sleep(self._coalesce_s)
            self._requested.clear()
            await self.reload()

    async def reload(self) -> None:
        """One reload; a refusal is logged and kept in the status, never raised."""
        try:
            self.current = await self._next()
        except NinferError as error:
            self._refuse(str(error) if isinstance(error, ConfigError) else one_line(str(error)))
        except Exception as error:  # whatever it is, the running configuration is sound
            logger.exception("unexpected error in a reload")
            self._refuse(f"{type(error).__name__}: {error}")
        self._observer.reload_finished(self.current)

    async def _next(self) -> Serving:
        """The next state, with the engine already on it. Raises NinferError and leaves everything as it was."""
        running = self.current.settings
        resolved = await asyncio.to_thread(load_config, self._sources)
        changes = diff(running, resolved.settings)
        settings = keep_process_values(running, resolved.settings, changes.process)
        # Files that keys point to are read again even if no key changed.
        api_keys = await asyncio.to_thread(load_api_keys, settings.server, self._sources.env)
        frontend = await asyncio.to_thread(load_frontend, settings)
        if changes.engine or self._has_other_model(frontend):
            await asyncio.to_thread(self._preflight, settings)
            await self._engine.replace(settings)
        else:
            self._engine.apply_live(settings)
        status = replace(
            self.current.status,
            generation=self.current.status.generation + 1,
            profile=resolved.profile,
            last_reload_unix_ms=time.time_ns() // 1_000_000,
            last_reload_error=None,
            pending_restart=pending_texts(changes.process),
        )
        _log_applied(changes, status.generation)
        return Serving(resolved, settings, frontend, api_keys, status, changes.process)

    def _has_other_model(self, frontend: ChatFrontend) -> bool:
        """Whether the files of the artifact changed under the engine: its weights would get the new tokenizer's ids."""
        info = self._engine.info
        changed = info is not None and info.model_identity != frontend.model_identity
        if changed:
            logger.info("reload | the files of model.artifact have changed, so the engine is replaced")
        return changed

    def _refuse(self, reason: str) -> None:
        for line in reason.splitlines():
            logger.error("reload refused, the old configuration stays | %s", line)
        status = replace(self.current.status, last_reload_unix_ms=time.time_ns() // 1_000_000, last_reload_error=reason)
        self.current = replace(self.current, status=status)


def keep_process_values(running: Settings, loaded: Settings, changes: Iterable[Change]) -> Settings:
    """``loaded`` with the values that only a restart can change as they are in ``running``."""
    for change in changes:
        group, name = change.key.split(".")
        table = getattr(loaded, group).model_copy(update={name: getattr(getattr(running, group), name)})
        loaded = loaded.model_copy(update={group: table})
    return loaded


def pending_texts(changes: Iterable[Change]) -> tuple[str, ...]:
    """``KEY: reason`` of every key that waits for a restart."""
    return tuple(f"{change.key}: {change.reason}" for change in changes)


def _log_applied(changes: ConfigDiff, generation: int) -> None:
    for change in changes:
        text = f"{change.key}: {value_text(change.old)} -> {value_text(change.new)}"
        if change.reload == "process":
            logger.warning("reload | %s needs systemctl restart: %s", text, change.reason)
        else:
            logger.info("reload | %s", text)
    logger.info("reload done | configuration generation %d", generation)
