"""The file a daemon leaves for ``ninferd config diff``."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from ninferd.config.origin import ConfigError
from ninferd.config.reload import Change, diff
from ninferd.config.running import read_running, write_running
from tests.config.support import MODEL, sources


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    env = {
        "NINFERD_SERVER_API_KEY": "hunter2",
        "NINFERD_LOG_LEVEL": "debug",
        "HOME": "/root",
        "RUNTIME_DIRECTORY": "/r",
    }
    config = sources(tmp_path, MODEL, profile="p", profiles={"p": ""}, env=env, overrides=(("server.port", "1"),))
    resolved = load(config)
    path = tmp_path / "effective.json"
    old_umask = os.umask(0o077)
    try:
        write_running(path, resolved, 3, [])
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "hunter2" not in path.read_text()
    running = read_running(path)
    assert running is not None
    assert (running.pid, running.generation, running.profile, running.pending_restart) == (os.getpid(), 3, "p", {})
    assert running.values.keys() == KEYS.keys()
    assert (running.values["server.port"], running.values["server.api_key"]) == (1, "<redacted>")
    assert running.values["daemon.runtime_dir"] == "/r"
    kept = {name: env[name] for name in ("NINFERD_LOG_LEVEL", "RUNTIME_DIRECTORY")}
    assert running.sources.to_sources() == type(config)(**{**vars(config), "env": kept})
    assert list(running.changes_to(resolved.settings)) == []


def test_pending_keys_still_run_with_their_old_value(tmp_path: Path) -> None:
    old = load(sources(tmp_path))
    new = load(sources(tmp_path, MODEL + "[server]\nport = 9\n[log]\nlevel = 'debug'\n"))
    path = tmp_path / "effective.json"
    write_running(path, new, 2, diff(old.settings, new.settings).process)
    running = read_running(path)
    assert running is not None
    assert (running.values["server.port"], running.values["log.level"]) == (8080, "debug")
    assert running.pending_restart == {"server.port": "the listening socket is bound once, at start"}
    reason = "the listening socket is bound once, at start"
    assert running.changes_to(new.settings) == [Change("server.port", 8080, 9, "process", reason)]


def test_every_value_survives_json(tmp_path: Path) -> None:
    text = (
        "[template.kwargs]\na = [1, 2.5, { b = 'é' }]\n[compat]\nmodel_alias = ['x']\n"
        "[sampling]\nseed = 18446744073709551615\ntemperature = 1\n[engine]\nrope_scaling_factor = 1\n"
    )
    resolved = load(sources(tmp_path, MODEL + text))
    write_running(tmp_path / "e.json", resolved, 1, [])
    running = read_running(tmp_path / "e.json")
    assert running is not None
    assert running.changes_to(resolved.settings) == []


def test_without_a_daemon_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "effective.json"
    assert read_running(path) is None
    write_running(path, load(sources(tmp_path)), 1, [])
    stale = json.loads(path.read_text())
    path.write_text(json.dumps({**stale, "pid": 2**22 + 1}))  # beyond any pid
    assert read_running(path) is None
    path.write_text(json.dumps({**stale, "process_started_unix_s": 1.0}))  # the pid was reused
    assert read_running(path) is None


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "effective.json"
    for text in ("{}", "not json", '{"pid": "x"}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="not written by this version of ninferd"):
            read_running(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "effective.json"
    resolved = load(sources(tmp_path))
    write_running(path, resolved, 1, [])
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_running(path, resolved, 2, [])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if "effective" in entry.name] == ["effective.json"]
