"""``ninferd check`` and ``ninferd config``, as an operator types them."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from ninferd.cli import main
from ninferd.config.layers import load
from ninferd.config.reload import diff
from ninferd.config.running import write_running
from tests.config.support import MODEL, sources
from tests.support.frontends import tiny_directory

Output = pytest.CaptureFixture[str]


_MODEL_LINES = (
    "Hugging Face directory; loaded: text; stored but not loaded: mtp\n"
    "weights bf16: embedding bf16; gdn bf16 in 6; mlp bf16 in 8; attention bf16 in 2; a/b separate\n"
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A base file whose model is a directory that may be changed."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_directory(), directory)
    return f'[model]\nartifact = "{directory}"\n'


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NINFERD_CONFIG", "NINFERD_PROFILE", "RUNTIME_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def _base(root: Path) -> list[str]:
    return ["--config", str(root / "ninferd.toml")]


def test_check_names_the_files_it_read(tmp_path: Path, model: str, capsys: Output) -> None:
    sources(tmp_path, model, conf_d={"1": "[log]\nlevel = 'debug'\n"})
    assert main(["check", *_base(tmp_path)]) == 0
    assert capsys.readouterr() == (
        f"configuration is valid; read {tmp_path}/ninferd.toml, {tmp_path}/conf.d/1.toml\n{_MODEL_LINES}",
        "",
    )


def test_check_without_any_file(tmp_path: Path, model: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.cli.options.DEFAULT_BASE_FILE", tmp_path / "ninferd.toml")
    assert main(["check", "--set", f"model.artifact={tmp_path}/model"]) == 0
    assert capsys.readouterr().out == (
        f"configuration is valid; read no file (defaults, environment and command line only)\n{_MODEL_LINES}"
    )


def test_check_lists_every_problem(tmp_path: Path, model: str, capsys: Output) -> None:
    sources(tmp_path, model + "[server]\nport = 0\nprot = 1\n")
    assert main(["check", *_base(tmp_path), "--log-level", "loud"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"config error: {tmp_path}/ninferd.toml:4: server.port: expected an integer in 1..65535, got 0",
        f"config error: {tmp_path}/ninferd.toml:5: server.prot: unknown key; did you mean server.port?",
        'config error: command line: log.level: expected one of "trace", "debug", "info", "warning", "error", '
        '"critical", "off", got "loud" (a string)',
    ]


def test_check_looks_at_features_model_and_keys_together(tmp_path: Path, capsys: Output) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:hunter2\n")
    keys.chmod(0o644)
    sources(
        tmp_path,
        '[model]\nartifact = "/nowhere"\n[tools]\ntolerant = true\n'
        f'[server]\napi_keys_file = "{keys}"\n[thinking]\ndefault_budget = 9000\n',
    )
    assert main(["check", *_base(tmp_path)]) == 2
    warning, *errors = capsys.readouterr().err.splitlines()
    base = f"{tmp_path}/ninferd.toml"
    assert warning.startswith(f"config warning: {base}:8: thinking.default_budget: 9000 can never be reached")
    assert errors[:2] == [
        f"config error: {base}:8: thinking.default_budget = 9000: not available in this build",
        f"config error: {base}:4: tools.tolerant = true: not available in this build",
    ]
    assert errors[2].startswith(f"config error: {base}:2: model.artifact: /nowhere does not exist")
    assert errors[3].startswith(f"config error: {keys}: server.api_keys_file: cannot be used: mode 0644")
    assert len(errors) == 4


def test_check_tries_the_template(tmp_path: Path, model: str, capsys: Output) -> None:
    (tmp_path / "model" / "chat_template.jinja").write_text("{% if %}")
    sources(tmp_path, model)
    assert main(["check", *_base(tmp_path)]) == 2
    problem = capsys.readouterr().err
    assert problem.startswith(f"config error: {tmp_path}/ninferd.toml:2: {tmp_path}/model/chat_template.jinja: ")


def test_check_looks_for_the_weights(tmp_path: Path, model: str, capsys: Output) -> None:
    (tmp_path / "model" / "model.safetensors").unlink()
    sources(tmp_path, model)
    assert main(["check", *_base(tmp_path)]) == 2
    problem = capsys.readouterr().err
    assert problem.startswith(f"config error: {tmp_path}/ninferd.toml:2: {tmp_path}/model: holds neither model.safe")


def test_check_asserts_the_profile_of_the_weights(tmp_path: Path, model: str, capsys: Output) -> None:
    sources(tmp_path, model + "weights_profile = 'bf16'\n")
    assert main(["check", *_base(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["check", *_base(tmp_path), "--weights-profile", "qwen36-nvfp4"]) == 2
    problem = capsys.readouterr().err
    assert "model.weights_profile is qwen36-nvfp4, but the weights are bf16: embedding: expected q8_g32_fp16" in problem


def test_check_compares_the_context_with_the_model(tmp_path: Path, model: str, capsys: Output) -> None:
    sources(tmp_path, model + "[engine]\nmax_context = 32769\n")
    assert main(["check", *_base(tmp_path)]) == 2
    assert "engine.max_context is 32769 tokens, this model reaches 32768 (32768 positions" in capsys.readouterr().err


def test_show_prints_toml_that_parses(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL)
    assert main(["config", "show", *_base(tmp_path), "--port", "9090", "--no-thinking"]) == 0
    document = tomllib.loads(capsys.readouterr().out)
    assert document["server"]["port"] == 9090
    assert document["thinking"]["enabled"] is False


def test_show_one_key_with_its_origin(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL, profiles={"p": "\n[engine]\nmax_context = 64\n"})
    arguments = ["config", "show", "engine.max_context", *_base(tmp_path), "--profile", "p", "--origin"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        f"[engine]\nmax_context = 64  # profile {tmp_path}/profiles/p.toml:3; reload: engine\n"
    )
    assert main([*arguments, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"]["max_context"]["line"] == 3


def test_show_refuses_what_does_not_exist(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL)
    assert main(["config", "show", "server.prot", *_base(tmp_path)]) == 2
    assert capsys.readouterr().err == "ninferd: server.prot: unknown key; did you mean server.port?\n"


def test_set_then_show(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL)
    drop_in = tmp_path / "conf.d/50-ninferd-set.toml"
    assert main(["config", "set", "server.port", "9090", *_base(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"server.port = 9090 in {drop_in}\n"
        "apply with `systemctl restart ninferd`: the listening socket is bound once, at start\n"
    )
    assert main(["config", "set", "log.level", "debug", *_base(tmp_path)]) == 0
    assert "apply with `systemctl reload ninferd`: applies at once" in capsys.readouterr().out
    assert main(["config", "show", "server.port", "--origin", *_base(tmp_path)]) == 0
    assert capsys.readouterr().out == f"[server]\nport = 9090  # conf.d {drop_in}:3; reload: process\n"


def test_set_tells_when_it_has_no_effect(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    sources(tmp_path, MODEL)
    monkeypatch.setenv("NINFERD_SERVER_PORT", "7000")
    assert main(["config", "set", "server.port", "9090", *_base(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"wrote {tmp_path}/conf.d/50-ninferd-set.toml, but NINFERD_SERVER_PORT sets server.port too and wins\n"
    )


def test_set_refuses_an_invalid_result(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL)
    assert main(["config", "set", "server.port", "0", *_base(tmp_path)]) == 2
    assert "server.port: expected an integer in 1..65535, got 0" in capsys.readouterr().err
    assert not (tmp_path / "conf.d/50-ninferd-set.toml").exists()


def test_set_on_a_full_disk(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    sources(tmp_path, MODEL)
    monkeypatch.setattr("os.fsync", full)
    assert main(["config", "set", "server.port", "1", *_base(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"ninferd: {tmp_path}/conf.d/50-ninferd-set.toml: cannot be written: No space left on device\n"
    )


def test_diff_without_a_daemon(tmp_path: Path, capsys: Output) -> None:
    sources(tmp_path, MODEL + f'[daemon]\nruntime_dir = "{tmp_path}"\n')
    assert main(["config", "diff", *_base(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"no daemon is running here: {tmp_path}/effective.json is missing or left by one that has ended\n"
    )


def _running(root: Path) -> list[str]:
    """This process poses as the daemon: started with port 8080, reloaded once with a changed port and level."""
    runtime = f'[daemon]\nruntime_dir = "{root}"\n'
    started = load(sources(root, MODEL + runtime))
    reloaded = load(
        sources(root, MODEL + runtime + "[log]\nlevel = 'debug'\n[server]\nport = 9\n", env={"NINFERD_CONFIG": "x"})
    )
    pending = diff(started.settings, reloaded.settings).process
    write_running(root / "effective.json", reloaded, 2, pending)
    return ["config", "diff", "--set", f"daemon.runtime_dir={root}", "--config", "/dev/null"]


def test_diff_says_what_a_reload_would_do(tmp_path: Path, capsys: Output) -> None:
    command = _running(tmp_path)
    base = tmp_path / "ninferd.toml"
    base.write_text(base.read_text().replace("debug", "error") + "[engine]\nmax_context = 64\n")
    assert main(command) == 0
    heading, *changes = capsys.readouterr().out.splitlines()
    assert heading.startswith("running: pid ")
    assert heading.endswith(", generation 2, profile none")
    assert changes == [
        f"engine.max_context: 8192 -> 64 ({base}:10) [engine] reload: the engine child is drained and replaced under "
        "the open listener",
        f"server.port: 8080 -> 9 ({base}:8) [process] pending_restart: the listening socket is bound once, at start",
        f'log.level: "debug" -> "error" ({base}:6) [live] reload: applies at once; a running request keeps what it '
        "started with",
    ]


def test_diff_when_the_files_are_back(tmp_path: Path, capsys: Output) -> None:
    command = _running(tmp_path)
    base = tmp_path / "ninferd.toml"
    base.write_text(base.read_text().replace("port = 9", "port = 8080"))
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "server.port: was pending (the listening socket is bound once, at start); "
        "the files are back at the running value",
        "the files say what the daemon runs with; a reload would change nothing",
    ]


def test_diff_when_a_reload_would_be_refused(tmp_path: Path, capsys: Output) -> None:
    command = _running(tmp_path)
    base = tmp_path / "ninferd.toml"
    base.write_text(base.read_text() + "nonsense\n")
    assert main(command) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "a reload would be refused and the running configuration kept:"
    assert second.startswith(f"config error: {base}:9: TOML syntax: ")
