from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from ninferd.config.layers import ConfigSources, ResolvedConfig, load
from ninferd.config.origin import Problem
from ninferd.config.reload import diff
from ninferd.config.schema import Settings
from ninferd.daemon.child import EngineLoadError
from ninferd.daemon.preflight import DoesNotFitError
from ninferd.daemon.reload import Reloader, keep_process_values
from ninferd.daemon.serving import Serving, first_serving, load_config
from ninferd.engine.messages import EngineInfo
from ninferd.weights.identity import model_identity
from ninferd.weights.locate import artifact_path
from tests.daemon.fake_engine import INFO
from tests.daemon.support import run, settings
from tests.support.frontends import tiny_directory

BASE = '[model]\nartifact = "embedded:ninfer-tiny"\n'


@dataclass
class Engine:
    """Stands for the supervisor."""

    info: EngineInfo | None = None
    replaced: list[Settings] = field(default_factory=list)
    live: list[Settings] = field(default_factory=list)
    fails: bool = False

    async def replace(self, settings: Settings) -> None:
        if self.fails:
            raise EngineLoadError("out of memory")
        self.replaced.append(settings)

    def apply_live(self, settings: Settings) -> None:
        self.live.append(settings)


@dataclass
class Observer:
    started: int = 0
    finished: list[Serving] = field(default_factory=list)
    on_finish: Callable[[], None] = lambda: None

    def reload_started(self) -> None:
        self.started += 1

    def reload_finished(self, serving: Serving) -> None:
        self.finished.append(serving)
        self.on_finish()


@dataclass
class Setup:
    """A reloader over real files."""

    base: Path
    reloader: Reloader
    engine: Engine
    observer: Observer

    def write(self, text: str) -> None:
        self.base.write_text(text)

    def reload(self) -> Serving:
        run(self.reloader.reload())
        return self.reloader.current


def accept(_settings: Settings) -> None:
    """A preflight that everything passes."""


def make(tmp_path: Path, text: str = BASE, preflight: Callable[[Settings], None] = accept) -> Setup:
    base = tmp_path / "ninferd.toml"
    base.write_text(text)
    sources = ConfigSources(base, None, tmp_path / "profiles", tmp_path / "conf.d", {})
    engine, observer = Engine(), Observer()
    serving = first_serving(load_config(sources))
    return Setup(base, Reloader(sources, serving, engine, preflight, observer, coalesce_s=0), engine, observer)


def test_live_key_applies_at_once(tmp_path: Path) -> None:
    setup = make(tmp_path)
    setup.write(BASE + "[queue]\nmax_pending = 3\n")
    after = setup.reload()
    assert after.settings.queue.max_pending == 3
    assert after.status.generation == 2
    assert after.status.last_reload_error is None
    assert after.status.last_reload_unix_ms > 0
    assert setup.engine.live == [after.settings]
    assert setup.engine.replaced == []
    assert setup.observer.finished == [after]


def test_engine_key_replaces_the_child(tmp_path: Path) -> None:
    setup = make(tmp_path)
    setup.write(BASE + "[engine]\nmax_context = 4096\n")
    after = setup.reload()
    assert setup.engine.replaced == [after.settings]
    assert after.settings.engine.max_context == 4096


def test_process_key_waits_for_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    setup = make(tmp_path)
    setup.write(BASE + "[server]\nport = 9999\ndrain_s = 7\n")
    after = setup.reload()
    assert after.settings.server.port == 8080
    assert after.settings.server.drain_s == 7, "the live key beside it applies"
    assert after.status.pending_restart == ("server.port: the listening socket is bound once, at start",)
    assert "server.port: 8080 -> 9999 needs systemctl restart" in caplog.text
    setup.write(BASE)
    assert setup.reload().status.pending_restart == (), "set back"


def test_changed_values_are_logged_as_the_files_write_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    setup = make(tmp_path)
    setup.write(BASE + "[sampling]\nseed = 7\n[compat]\nmode = 'strict'\n")
    with caplog.at_level("INFO"):
        setup.reload()
    assert "sampling.seed: unset -> 7" in caplog.text
    assert 'compat.mode: "lenient" -> "strict"' in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BASE + "[queue]\npending_timeout_ms = 5\nmax_pending = 0\n", "ninferd.toml:5: queue.max_pending: "),
        (BASE + "[queue]\nmax_pendng = 1\n", "ninferd.toml:4: queue.max_pendng: "),
        (BASE + "[queue\n", "ninferd.toml:3"),
        (BASE + '[spec]\nbackend = "mtp"\ndraft_tokens = 1\n', "not available in this build"),
        (BASE + '[template]\nfile = "/no/such.jinja"\n', "/no/such.jinja"),
        (BASE + '[server]\napi_keys_file = "/no/such/keys"\n', "/no/such/keys"),
        ('[model]\nartifact = "/no/such/model"\n', "/no/such/model"),
    ],
    ids=["range", "unknown-key", "syntax", "later-feature", "template", "key-file", "artifact"],
)
def test_any_error_keeps_the_old_configuration_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str
) -> None:
    setup = make(tmp_path)
    before = setup.reloader.current
    setup.write(text)
    after = setup.reload()
    assert after.settings is before.settings
    assert after.frontend is before.frontend
    assert after.api_keys is before.api_keys
    assert after.status.generation == 1
    assert after.status.last_reload_error is not None
    assert problem in after.status.last_reload_error
    assert setup.engine == Engine()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(problem in message for message in errors)
    assert all(message.startswith("reload refused, the old configuration stays | ") for message in errors)


def test_good_reload_clears_the_error(tmp_path: Path) -> None:
    setup = make(tmp_path)
    setup.write("broken")
    assert setup.reload().status.last_reload_error is not None
    setup.write(BASE)
    assert setup.reload().status.last_reload_error is None


def test_engine_that_does_not_load_keeps_the_old_configuration(tmp_path: Path) -> None:
    setup = make(tmp_path)
    setup.engine.fails = True
    setup.write(BASE + "[engine]\nmax_context = 4096\n[queue]\nmax_pending = 3\n")
    after = setup.reload()
    assert after.status.last_reload_error == "out of memory"
    assert after.settings.engine.max_context == 8192
    assert after.settings.queue.max_pending == 16, "live keys of the same reload do not apply either"


def test_engine_that_cannot_fit_is_refused_before_the_old_one_is_touched(tmp_path: Path) -> None:
    def too_big(_settings: Settings) -> None:
        raise DoesNotFitError("needs 3 GiB")

    setup = make(tmp_path, preflight=too_big)
    setup.write(BASE + "[engine]\nmax_context = 4096\n")
    assert setup.reload().status.last_reload_error == "needs 3 GiB"
    assert setup.engine.replaced == []
    setup.write(BASE + "[queue]\nmax_pending = 3\n")
    assert setup.reload().status.last_reload_error is None, "live keys need no preflight"


def test_warnings_of_the_configuration_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_with_warning(sources: ConfigSources) -> ResolvedConfig:
        return replace(load(sources), warnings=(Problem("a.toml:3", "queue.max_pending", "is odd"),))

    monkeypatch.setattr("ninferd.daemon.serving.load", load_with_warning)
    make(tmp_path).reload()
    assert "config | a.toml:3: queue.max_pending: is odd" in caplog.messages


def test_files_of_unchanged_keys_are_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a:first-key\n")
    keys.chmod(0o600)
    setup = make(tmp_path, BASE + f'[server]\napi_keys_file = "{keys}"\n')
    assert setup.reloader.current.api_keys.label_of("first-key") == "a"
    keys.write_text("b:second-key\n")
    after = setup.reload()
    assert after.api_keys.label_of("first-key") is None
    assert after.api_keys.label_of("second-key") == "b"


def test_model_behind_a_link_is_another_one_once_the_link_points_elsewhere(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(tiny_directory(), tmp_path / name)
    link = tmp_path / "model"
    link.symlink_to(tmp_path / "one")
    setup = make(tmp_path, f'[model]\nartifact = "{link}"\n')
    setup.engine.info = msgspec.structs.replace(INFO, model_identity=setup.reloader.current.frontend.model_identity)
    assert setup.reload().status.generation == 2
    assert setup.engine.replaced == []
    link.unlink()
    link.symlink_to(tmp_path / "two")
    after = setup.reload()
    assert setup.engine.replaced == [after.settings]
    assert after.frontend.model_identity == model_identity(tmp_path / "two")


def test_artifact_that_was_replaced_is_another_model(tmp_path: Path) -> None:
    artifact = tmp_path / "m.ninfer"
    shutil.copy(artifact_path("embedded:ninfer-tiny"), artifact)
    setup = make(tmp_path, f'[model]\nartifact = "{artifact}"\n')
    setup.engine.info = msgspec.structs.replace(INFO, model_identity=setup.reloader.current.frontend.model_identity)
    assert setup.reload().status.generation == 2
    assert setup.engine.replaced == []
    shutil.copy(artifact, tmp_path / "new")
    (tmp_path / "new").replace(artifact)
    after = setup.reload()
    assert setup.engine.replaced == [after.settings]
    assert after.frontend.model_identity == model_identity(artifact)


def test_artifact_that_is_broken_now_keeps_the_old_one(tmp_path: Path) -> None:
    artifact = tmp_path / "m.ninfer"
    shutil.copy(artifact_path("embedded:ninfer-tiny"), artifact)
    setup = make(tmp_path, f'[model]\nartifact = "{artifact}"\n')
    whole = artifact.read_bytes()
    artifact.write_bytes(whole[:-1])
    before = setup.reloader.current.frontend
    after = setup.reload()
    assert f"m.ninfer: is {len(whole) - 1} bytes long, expected {len(whole)}" in str(after.status.last_reload_error)
    assert after.frontend is before


def test_secrets_do_not_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    setup = make(tmp_path, BASE + '[server]\napi_key = "old-secret-key"\n')
    setup.write(BASE + '[server]\napi_key = "new-secret-key"\n')
    with caplog.at_level(logging.DEBUG):
        setup.reload()
    assert "server.api_key" in caplog.text
    assert "secret-key" not in caplog.text


def test_unexpected_error_is_a_refusal_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make(tmp_path)

    def broken(_settings: Settings) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("ninferd.daemon.reload.load_frontend", broken)
    after = setup.reload()
    assert after.status.last_reload_error == "RuntimeError: a bug"
    assert after.status.generation == 1


def test_signals_close_together_are_one_reload(tmp_path: Path) -> None:
    async def body() -> None:
        setup = make(tmp_path)
        done = asyncio.Event()
        setup.observer.on_finish = done.set
        task = asyncio.create_task(setup.reloader.run())
        for _ in range(3):
            setup.reloader.request()
        await done.wait()
        assert setup.observer.started == 1
        done.clear()
        setup.reloader.request()
        await done.wait()
        assert [serving.status.generation for serving in setup.observer.finished] == [2, 3]
        task.cancel()

    run(body())


def test_signal_during_a_reload_is_not_lost(tmp_path: Path) -> None:
    async def body() -> None:
        setup = make(tmp_path)
        second = asyncio.Event()

        def on_finish() -> None:
            if len(setup.observer.finished) == 1:
                setup.reloader.request()
            else:
                second.set()

        setup.observer.on_finish = on_finish
        task = asyncio.create_task(setup.reloader.run())
        setup.reloader.request()
        await second.wait()
        task.cancel()

    run(body())


def test_keep_process_values() -> None:
    running = settings(server={"host": "127.0.0.1", "port": 1000, "drain_s": 1})
    loaded = settings(server={"host": "0.0.0.0", "port": 2000, "drain_s": 2})
    kept = keep_process_values(running, loaded, diff(running, loaded).process)
    assert (kept.server.host, kept.server.port, kept.server.drain_s) == ("127.0.0.1", 1000, 2)
