"""The whole main process with a real engine child, against a stand-in for systemd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.http_client import finish_reason, has_error
from tests.daemon.process import DaemonProcess, endless_model
from tests.support.frontends import tiny_directory

EMBEDDED = '[model]\nartifact = "embedded:ninfer-tiny"\n'


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return endless_model(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture
def daemon(tmp_path: Path, endless: Path) -> Iterator[DaemonProcess]:
    """Ready, with a model whose streams last."""
    config = f'[model]\nartifact = "{endless}"\n[engine]\nmax_concurrency = 2\n[server]\ndrain_s = 60\n'
    with DaemonProcess(tmp_path / "daemon", config) as process:
        process.wait_notify("READY=1")
        yield process


def test_start_reload_stop(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "daemon", EMBEDDED, env={"WATCHDOG_USEC": "60000000"}) as daemon:
        daemon.wait_notify("WATCHDOG=1")
        ready = daemon.wait_notify("READY=1")
        assert f"STATUS=serving ninfer-tiny at 127.0.0.1:{daemon.port}" in ready
        assert any(text.startswith("STATUS=loading weights") for text in daemon.notified)
        assert any(text.startswith("EXTEND_TIMEOUT_USEC=") for text in daemon.notified)
        assert daemon.get("/health")[0] == 200
        assert json.loads((daemon.runtime_dir / "effective.json").read_text())["generation"] == 1

        daemon.write_config(EMBEDDED + "[limits]\ndefault_max_tokens = 7\n")
        daemon.send(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in daemon.wait_notify("RELOADING=1")
        daemon.wait_notify("READY=1")
        daemon.wait_log("limits.default_max_tokens: 8192 -> 7")
        assert json.loads((daemon.runtime_dir / "effective.json").read_text())["generation"] == 2

        daemon.write_config(EMBEDDED + "[limits]\ndefault_max_tokens = 0\n")
        daemon.send(signal.SIGHUP)
        daemon.wait_notify("RELOADING=1")
        assert f"last reload refused: {daemon.config}:4: limits.default_max_tokens" in daemon.wait_notify("READY=1")
        assert f"{daemon.config}:4: limits.default_max_tokens" in daemon.wait_log("reload refused")

        daemon.send(signal.SIGUSR1)
        stats = json.loads(daemon.wait_log("stats | ").partition("stats | ")[2])
        assert stats["schema"] == "ninfer_serve_stats"
        assert stats["config"]["generation"] == 2
        assert stats["config"]["last_reload_error"].startswith(f"{daemon.config}:4: ")

        daemon.send(signal.SIGTERM)
        daemon.wait_notify("STOPPING=1")
        assert daemon.wait_exit() == 0
        assert "stopped | exit status 0" in daemon.drain_log()
        assert not (daemon.runtime_dir / "effective.json").exists()


def test_engine_key_is_replaced_under_the_open_listener(daemon: DaemonProcess) -> None:
    first_child = daemon.child_pid
    daemon.write_config(daemon.config.read_text().replace("[engine]", "[engine]\nmax_context = 1024"))
    daemon.send(signal.SIGHUP)
    daemon.wait_notify("RELOADING=1")
    daemon.wait_notify("READY=1")
    assert daemon.child_pid != first_child
    assert daemon.get("/v1/models")[1]["data"][0]["max_model_len"] == 1024


def test_stop_lets_a_running_stream_finish(daemon: DaemonProcess) -> None:
    with daemon.stream(max_tokens=60) as payloads:
        next(payloads)
        daemon.send(signal.SIGTERM)
        daemon.wait_log("draining | 1 requests in flight")
        assert daemon.get("/health")[0] == 503
        rest = list(payloads)
    assert finish_reason(rest) == "length"
    assert daemon.wait_exit() == 0


def test_second_stop_signal_exits_at_once(daemon: DaemonProcess) -> None:
    with daemon.stream(max_tokens=8000) as payloads:
        next(payloads)
        daemon.send(signal.SIGTERM)
        daemon.wait_log("draining | 1 requests in flight")
        for _ in payloads:  # one signal per token: those of the first second are the same stop, passed on by launchers
            daemon.send(signal.SIGTERM)
    assert daemon.wait_exit() == 128 + signal.SIGTERM
    assert "second stop signal" in daemon.drain_log()


def test_killed_child_costs_its_streams_and_nothing_else(daemon: DaemonProcess) -> None:
    with daemon.stream(max_tokens=8000) as payloads:
        next(payloads)
        child = daemon.child_pid
        os.kill(child, signal.SIGKILL)
        rest = list(payloads)
    assert has_error(rest)
    daemon.wait_log("engine lost: the engine was killed by SIGKILL | restart 1 of 5")
    with daemon.stream(max_tokens=3) as payloads:
        assert finish_reason(list(payloads)) == "length"
    assert daemon.child_pid != child


def test_stop_while_loading(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "daemon", EMBEDDED) as daemon:
        daemon.wait_log("listening on")
        daemon.wait_notify("EXTEND_TIMEOUT_USEC")  # the event loop runs, signals are handled
        daemon.send(signal.SIGTERM)
        assert daemon.wait_exit() == 0


def test_runtime_directory_that_cannot_be_used_is_no_failure(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "daemon", EMBEDDED, env={"RUNTIME_DIRECTORY": "/dev/null/run"}) as daemon:
        daemon.wait_notify("READY=1")
        assert "daemon.runtime_dir /dev/null/run: " in daemon.wait_log("config diff cannot see this daemon")
        daemon.send(signal.SIGTERM)
        daemon.wait_log("stopped | exit status 0")
        assert daemon.wait_exit() == 0


def test_reload_signal_during_the_load_waits_for_its_end(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "daemon", EMBEDDED) as daemon:
        daemon.wait_notify("EXTEND_TIMEOUT_USEC")
        daemon.send(signal.SIGHUP)
        daemon.wait_notify("READY=1")
        assert not any("RELOADING=1" in text for text in daemon.notified)
        daemon.wait_notify("RELOADING=1")
        daemon.wait_notify("READY=1")
        daemon.wait_log("reload done | configuration generation 2")


def test_engine_that_does_not_stay_up_ends_the_daemon_after_its_answers(tmp_path: Path, endless: Path) -> None:
    config = f'[model]\nartifact = "{endless}"\n[daemon]\nengine_max_restarts = 0\n'
    with DaemonProcess(tmp_path / "daemon", config) as daemon:
        daemon.wait_notify("READY=1")
        with daemon.stream(max_tokens=8000) as payloads:
            next(payloads)
            os.kill(daemon.child_pid, signal.SIGKILL)
            assert has_error(list(payloads))
        giving_up = "giving up after 0 restarts within 300 s"
        assert giving_up in daemon.wait_log("engine failed | ")
        assert giving_up in daemon.wait_notify("STATUS=engine failed")
        assert daemon.wait_exit() == 3


@pytest.mark.parametrize(
    ("config", "status", "message"),
    [
        (
            '[model]\nartifact = "embedded:ninfer-tiny"\n[queue]\nmax_pending = 0\n',
            2,
            "ninferd.toml:4: queue.max_pending",
        ),
        ('[model]\nartifact = "/no/such/model"\n', 2, "model.artifact: /no/such/model does not exist"),
        (EMBEDDED + "[engine]\nmax_context = 32768\nkv_capacity = 2147483647\n", 1, "caches do not fit"),
        (EMBEDDED + "[engine]\nmax_context = 40000\n", 2, "this model reaches 32768"),
    ],
    ids=["config", "artifact", "memory", "context"],
)
def test_what_cannot_run_is_refused(tmp_path: Path, config: str, status: int, message: str) -> None:
    with DaemonProcess(tmp_path / "daemon", config) as daemon:
        assert message in daemon.wait_log("cannot start | ")
        assert daemon.wait_exit() == status
        assert message in daemon.wait_notify("STATUS=cannot start")


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with DaemonProcess(tmp_path / "daemon", EMBEDDED, port=port) as daemon:
            assert f"cannot listen on 127.0.0.1:{port}" in daemon.wait_log("cannot start | ")
            assert daemon.wait_exit() == 1


def test_a_model_that_is_served_can_be_deleted(tmp_path: Path) -> None:
    """Neither process keeps the file, so its disk space is free at once, also after a reload to another one."""
    first, second = endless_model(tmp_path / "first.ninfer"), endless_model(tmp_path / "second.ninfer")
    with DaemonProcess(tmp_path / "daemon", f'[model]\nartifact = "{first}"\nid = "endless"\n') as daemon:
        daemon.wait_notify("READY=1")
        for pid in (daemon.pid, daemon.child_pid):
            assert str(first) not in Path(f"/proc/{pid}/maps").read_text()
        daemon.write_config(f'[model]\nartifact = "{second}"\nid = "endless"\n')
        first.unlink()
        daemon.send(signal.SIGHUP)
        daemon.wait_notify("RELOADING=1")
        daemon.wait_notify("READY=1")
        daemon.wait_log("reload done")
        for pid in (daemon.pid, daemon.child_pid):
            assert str(tmp_path) not in Path(f"/proc/{pid}/maps").read_text()
        assert not [link for link in Path(f"/proc/{daemon.pid}/fd").iterdir() if link.readlink().suffix == ".ninfer"]


def test_weights_of_another_shape_are_refused_before_the_engine_starts(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory(), broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] * 2}))
    with DaemonProcess(tmp_path / "daemon", f'[model]\nartifact = "{broken}"\n') as daemon:
        assert "has shape" in daemon.wait_log("cannot start | ")
        assert daemon.wait_exit() == 2


def test_model_that_the_engine_refuses_ends_the_daemon_for_good(tmp_path: Path) -> None:
    """Weights are hashed by the engine, which says how far it is; systemd does not try status 2 again."""
    model = endless_model(tmp_path / "model.ninfer")
    (tmp_path / "model.ninfer.sha256").write_text(f"{'0' * 64}  model.ninfer\n")
    with DaemonProcess(tmp_path / "daemon", f'[model]\nartifact = "{model}"\nverify_hash = true\n') as daemon:
        assert "SHA-256 is " in daemon.wait_log("engine failed | ")
        daemon.wait_notify("STATUS=checking SHA-256: ")
        assert "SHA-256 is " in daemon.wait_notify("STATUS=engine failed")
        assert daemon.wait_exit() == 2


@pytest.mark.parametrize("is_whole", [False, True], ids=["refused at once", "refused by the engine"])
def test_a_bad_file_stays_in_its_line_whatever_its_name(tmp_path: Path, is_whole: bool) -> None:
    model = endless_model(tmp_path / "a\nb.ninfer")
    if not is_whole:
        model.write_bytes(model.read_bytes()[:-1])
    digest = "0" * 64 if is_whole else ""
    text = f'[model]\nartifact = "{tmp_path}/a\\nb.ninfer"\n' + (f'sha256 = "{digest}"\n' if digest else "")
    with DaemonProcess(tmp_path / "daemon", text) as daemon:
        line = daemon.wait_log("engine failed | " if is_whole else "cannot start | ")
        assert rf"{tmp_path}/a\nb.ninfer: {'SHA-256 is ' if is_whole else 'is '}" in line
        assert daemon.wait_exit() == 2
