"""What every command says when it is called the wrong way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ninferd.cli import main


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.cli.options.DEFAULT_BASE_FILE", tmp_path / "ninferd.toml")
    for name in ("NINFERD_CONFIG", "NINFERD_PROFILE", "RUNTIME_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", ["run", "generate", "chat", "check"])
def test_usage_fits_two_lines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--port"])
    assert exit_info.value.code == 2
    usage, _, rest = capsys.readouterr().err.partition(f"ninferd {command}: error: ")
    assert rest.startswith("argument --port: expected one argument")
    assert usage.startswith(f"usage: ninferd {command} [")
    assert len(usage) < 160


@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["chat"], ["config", "show"]])
def test_every_refused_key_has_a_line_of_its_own(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["--set", "server.port=0", "--set", "server.prot=1"]
    assert main([*command, *overrides]) == 2
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "config error: command line: server.port: expected an integer in 1..65535, got 0",
        "config error: command line: server.prot: unknown key; did you mean server.port?",
    ]


def test_generate_refuses_features_and_the_model_like_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "/nowhere", "--prompt", "x", "--set", "tools.tolerant=true"]) == 2
    feature, model = capsys.readouterr().err.splitlines()
    assert feature == "config error: command line: tools.tolerant = true: not available in this build"
    assert model.startswith("config error: command line: model.artifact: /nowhere does not exist")


def test_run_keeps_reload_signals_before_anything_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[signal.Signals] = set()

    def run_daemon(_sources: object) -> int:
        held.update(signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return 0

    monkeypatch.setattr("ninferd.daemon.lifecycle.run_daemon", run_daemon)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert main(["run"]) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert {signal.SIGHUP, signal.SIGUSR1} <= held
