"""The main process from start to exit: what happens when, in one place.

configuration -> preflight -> listening socket -> HTTP (503 while loading) -> engine -> READY -> reloads, restarts ->
drain -> exit. Exit status: 0 stopped, 1 cannot run here, 2 refused configuration, 3 the engine failed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.config import Config as HypercornConfig
from hypercorn.typing import ASGIFramework

from ninferd import __version__
from ninferd.api.app import create_app
from ninferd.api.context import ApiContext
from ninferd.config.layers import ConfigSources
from ninferd.config.origin import ConfigError
from ninferd.config.running import FILE_NAME, write_running
from ninferd.config.schema import Settings
from ninferd.daemon.child import EngineLoadError
from ninferd.daemon.console import Console, progress_bar, progress_text
from ninferd.daemon.descriptors import raise_descriptor_limit
from ninferd.daemon.journal import configure_logging, set_level
from ninferd.daemon.late_signals import release_late_signals
from ninferd.daemon.listener import FLUSH_S, format_address, hypercorn_config, open_listener
from ninferd.daemon.notify import ServiceNotifier
from ninferd.daemon.preflight import Machine, run_preflight
from ninferd.daemon.reload import Reloader
from ninferd.daemon.serving import Serving, first_serving, load_config
from ninferd.daemon.stats_dump import read_stats
from ninferd.daemon.supervisor import EngineGaveUpError, Supervisor
from ninferd.engine.messages import LoadProgress
from ninferd.errors import NinferError, one_line
from ninferd.weights.stored import forget_maps

logger = logging.getLogger(__name__)

TICK_S = 5.0  # longest time between two looks at the engine's health
EXTEND_S = 60.0  # what start, reload or stop may still take, as of every tick
SAME_STOP_S = 1.0  # a launcher may pass on the Ctrl-C that the terminal already sent to this process
SILENCE_S = 15.0  # without a watchdog: heartbeat age from which the engine is reported as stuck


def run_daemon(sources: ConfigSources) -> int:
    """Run until stopped; returns the exit status. An expected failure is logged, not raised."""
    faulthandler.enable()  # systemd's watchdog kills with SIGABRT: the journal then shows where this process was
    console = Console(sys.stderr)
    notifier = ServiceNotifier.from_environment()
    configure_logging("info", console)
    raise_descriptor_limit()
    try:
        serving, http = _prepare(sources)
    except NinferError as error:
        lines = error.lines if isinstance(error, ConfigError) else (one_line(str(error)),)
        for line in lines:
            logger.critical("cannot start | %s", line)
        notifier.status(f"cannot start: {error}")
        return error.exit_status
    return asyncio.run(_serve(sources, serving, console, notifier, http))


def _prepare(sources: ConfigSources) -> tuple[Serving, HypercornConfig]:
    """Everything that can be refused before the model loads. Raises NinferError."""
    resolved = load_config(sources)
    settings = resolved.settings
    set_level(settings.log.level)
    logger.info("ninferd %s | profile %s | pid %d", __version__, resolved.profile or "none", os.getpid())
    logger.info("preflight | %s", "\n".join(run_preflight(settings, Machine.read()).lines()))
    serving = first_serving(resolved)
    http = hypercorn_config(open_listener(settings.server.host, settings.server.port), settings)
    logger.info("listening on %s", format_address(settings.server.host, settings.server.port))
    forget_maps()
    return serving, http


async def _serve(
    sources: ConfigSources, serving: Serving, console: Console, notifier: ServiceNotifier, http: HypercornConfig
) -> int:
    return await Daemon(sources, serving, console, notifier).run(http)


class Daemon:
    """The running main process. Made and used inside one event loop."""

    def __init__(self, sources: ConfigSources, serving: Serving, console: Console, notifier: ServiceNotifier) -> None:
        self._console = console
        self._notifier = notifier
        self._supervisor = Supervisor(serving.settings, self)
        self._reloader = Reloader(sources, serving, self._supervisor, self._preflight_replacement, self)
        self._api = ApiContext(
            engine=self._supervisor,
            settings=lambda: self._settings,
            frontend=lambda: self._reloader.current.frontend,
            api_keys=lambda: self._reloader.current.api_keys,
            config_status=lambda: self._reloader.current.status,
        )
        self._app = create_app(self._api)
        self._stats_dump: asyncio.Task[None] | None = None  # a task that nobody holds may vanish
        self._running_file = Path(serving.settings.daemon.runtime_dir) / FILE_NAME
        self._stop = asyncio.Event()
        self._stopped_at_s = 0.0
        self._close_listener = asyncio.Event()
        self._loading_text = ""
        self._loading_stage = ""
        self._was_alive = True
        self._exit_status = 0

    @property
    def _settings(self) -> Settings:
        return self._reloader.current.settings

    async def run(self, http: HypercornConfig) -> int:
        """Serve until a signal or a failure; returns the exit status."""
        self._handle_signals()
        app = cast(ASGIFramework, self._app)  # the same protocol, typed differently by the two projects
        server = asyncio.create_task(serve(app, http, shutdown_trigger=self._close_listener.wait))
        health = asyncio.create_task(self._watch_health())
        stop = asyncio.create_task(self._stop.wait())
        engine = asyncio.create_task(self._run_engine())
        await asyncio.wait({server, stop, engine}, return_when=asyncio.FIRST_COMPLETED)
        await self._shut_down(engine, server)
        for task in (stop, health):
            task.cancel()
        logger.info("stopped | exit status %d", self._exit_status)
        return self._exit_status

    async def _run_engine(self) -> None:
        """Load, announce, then restart on crashes and reload on request, until the engine cannot be kept running."""
        reloads: asyncio.Task[None] | None = None
        try:
            await self._supervisor.start()
            self._announce_ready()
            reloads = asyncio.create_task(self._reloader.run())
            await self._supervisor.supervise()
        except (EngineLoadError, EngineGaveUpError) as error:
            self._exit_status = error.exit_status
            for line in str(error).splitlines():
                logger.critical("engine failed | %s", line)
            self._notifier.status(f"engine failed: {error}")
        finally:
            self._console.set_footer("")
            if reloads is not None:
                reloads.cancel()

    def _announce_ready(self) -> None:
        self._console.set_footer("")
        info = self._supervisor.info
        assert info is not None, "announced after the first load"
        logger.info("ready | %s on %s, loaded in %.1f s", info.model_name, info.device, info.load_seconds)
        self._publish(self._reloader.current)

    def _publish(self, serving: Serving) -> None:
        """Tell systemd, the log level and ``ninferd config diff`` what is served now."""
        set_level(serving.settings.log.level)
        try:
            self._running_file.parent.mkdir(mode=0o755, exist_ok=True)
            write_running(self._running_file, serving.resolved, serving.status.generation, serving.pending)
        except OSError as error:
            folder = self._running_file.parent
            logger.info("config diff cannot see this daemon | daemon.runtime_dir %s: %s", folder, error.strerror)
        self._notifier.ready(self._status_text(serving))

    def _status_text(self, serving: Serving) -> str:
        info, server = self._supervisor.info, serving.settings.server
        parts = [f"serving {info.model_name if info else ''} at {format_address(server.host, server.port)}"]
        if serving.status.last_reload_error:
            parts.append(f"last reload refused: {serving.status.last_reload_error.splitlines()[0]}")
        if serving.pending:
            parts.append("restart needed for " + "; ".join(serving.status.pending_restart))
        return " | ".join(parts)

    # What the supervisor and the reloader report.

    def loading(self, progress: LoadProgress) -> None:
        self._console.set_footer(progress_bar(progress))
        text = progress_text(progress)
        if text == self._loading_text:  # many reports per percent; systemd needs one
            return
        self._loading_text = text
        self._notifier.status(text)
        if progress.stage != self._loading_stage and not self._console.is_terminal:
            logger.info("%s", text)
        self._loading_stage = progress.stage

    def engine_status(self, text: str) -> None:
        self._notifier.status(text)

    def engine_restarted(self) -> None:
        self._console.set_footer("")
        self._notifier.status(self._status_text(self._reloader.current))
        info = self._supervisor.info
        if info is not None and info.model_identity != self._reloader.current.frontend.model_identity:
            logger.warning("the files of model.artifact have changed since they were read: reloading")
            self._reloader.request()

    def reload_started(self) -> None:
        logger.info("reload | reading the configuration again")
        self._notifier.reloading()

    def reload_finished(self, serving: Serving) -> None:
        forget_maps()
        self._console.set_footer("")
        self._publish(serving)

    def _preflight_replacement(self, settings: Settings) -> None:
        """Refuse an engine configuration that cannot fit once the running engine is gone."""
        info = self._supervisor.info
        freed = info.weights_bytes + info.kv_bytes + info.state_bytes if info else 0
        report = run_preflight(settings, Machine.read(), freed)
        logger.info("preflight of the new engine | %s", "\n".join(report.lines()))

    async def _watch_health(self) -> None:
        """Feed the watchdog only while the engine makes progress, and ask for time while something loads."""
        period_s = min(TICK_S, self._notifier.watchdog_interval_s or TICK_S)
        max_age_s = self._notifier.watchdog_interval_s or SILENCE_S
        while True:
            alive = self._supervisor.is_alive(max_age_s)
            if alive:
                self._notifier.watchdog()
            if alive and not self._was_alive:
                logger.warning("engine makes progress again")
            elif self._was_alive and not alive and self._supervisor.state != "failed":
                logger.error("engine silent for more than %.1f s | the watchdog is not fed any more", max_age_s)
            self._was_alive = alive
            if self._supervisor.state != "ready":
                self._notifier.extend_timeout(EXTEND_S)
            await asyncio.sleep(period_s)

    # Signals and the way out.

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.request)
        loop.add_signal_handler(signal.SIGUSR1, self._log_stats)
        release_late_signals()

    def _on_stop_signal(self, number: signal.Signals) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._stop.is_set() and now_s - self._stopped_at_s < SAME_STOP_S:
            return
        if self._stop.is_set():
            logger.critical("second stop signal (%s): exiting at once", number.name)
            self._supervisor.kill_child()
            os._exit(128 + number)
        logger.info("%s: stopping", number.name)
        self._stopped_at_s = now_s
        self._stop.set()

    def _log_stats(self) -> None:
        """SIGUSR1."""
        self._stats_dump = asyncio.create_task(self._dump_stats())

    async def _dump_stats(self) -> None:
        logger.info("stats | %s", await read_stats(self._app))

    async def _shut_down(self, engine: asyncio.Task[None], server: asyncio.Task[None]) -> None:
        """Drain, let answers reach their clients, close the listener, end the child."""
        if server.done():
            self._exit_status = 1
            logger.critical("the HTTP server ended", exc_info=server.exception())
        if self._exit_status == 0:
            drain_s = self._settings.server.drain_s
            count = self._supervisor.requests_in_flight
            self._notifier.stopping(f"stopping: {count} requests may finish within {drain_s} s")
            logger.info("draining | %d requests in flight, at most %d s", count, drain_s)
            if self._supervisor.state != "ready":
                engine.cancel()  # nothing runs that could finish
            await self._supervisor.drain(drain_s)
        try:
            await asyncio.wait_for(self._api.in_flight.wait_idle(), FLUSH_S)
        except TimeoutError:
            logger.warning("closing %d connections before their answers were taken", self._api.in_flight.count)
        self._close_listener.set()
        await asyncio.wait({server}, timeout=2 * FLUSH_S)
        server.cancel()
        engine.cancel()
        await asyncio.gather(server, engine, return_exceptions=True)
        await self._supervisor.stop()
        with suppress(OSError):  # it may never have been written
            self._running_file.unlink()
