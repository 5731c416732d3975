"""Values from environment variables and command-line text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from ninferd.config.text_values import parse_text
from tests.config.support import MODEL, refusal, sources

_TEXTS: list[tuple[str, str, Any]] = [
    ("model.id", "qwen", "qwen"),
    ("model.id", '"qwen"', "qwen"),
    ("model.id", "'a b'", "a b"),
    ("model.id", "123", "123"),
    ("model.id", "true", "true"),
    ("model.id", "[1]", "[1]"),
    ("model.id", 'half"open', 'half"open'),
    ("template.file", "/a/b.jinja", "/a/b.jinja"),
    ("engine.kv_dtype", "bf16", "bf16"),
    ("engine.device", "cpu", "cpu"),
    ("engine.device", "1", 1),
    ("engine.kv_capacity", "auto", "auto"),
    ("server.port", "8080", 8080),
    ("server.port", "eighty", "eighty"),  # for validation to refuse
    ("server.port", "1\nx = 2", "1\nx = 2"),
    ("sampling.temperature", "0.5", 0.5),
    ("sampling.temperature", "1", 1),
    ("server.cors", "true", True),
    ("server.cors", "yes", "yes"),
    ("compat.model_alias", '["a", "b"]', ["a", "b"]),
    ("template.kwargs", "{ a = 1 }", {"a": 1}),
    ("sampling.seed", "18446744073709551616", "18446744073709551616"),  # beyond 64 bits
    ("template.kwargs", "{ a" + ".a" * 40 + " = 1 }", "{ a" + ".a" * 40 + " = 1 }"),  # nested too deeply
]


@pytest.mark.parametrize(("key", "text", "value"), _TEXTS)
def test_text_becomes_the_value_that_is_meant(key: str, text: str, value: Any) -> None:
    parsed = parse_text(KEYS[key], text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_every_key_has_its_own_variable() -> None:
    names = {spec.env for spec in KEYS.values()}
    assert len(names) == len(KEYS)
    assert "NINFERD_ENGINE_MAX_CONTEXT" in names
    assert "NINFERD_REQUEST_LOG_MAX_MIB" in names
    assert "NINFERD_SAMPLING_POST_THINKING__TEMPERATURE" in names


def test_variables_of_all_kinds(tmp_path: Path) -> None:
    env = {
        "NINFERD_MODEL_ARTIFACT": "m",
        "NINFERD_SAMPLING_POST_THINKING__TEMPERATURE": "0.2",
        "NINFERD_SERVER_API_KEYS": '{ alice = "k" }',
        "NINFERD_CONFIG": "ignored here",
        "PATH": "/bin",
    }
    settings = load(sources(tmp_path, "", env=env)).settings
    assert settings.model.artifact == "m"
    assert settings.sampling.post_thinking.temperature == 0.2
    assert settings.server.api_keys == {"alice": SecretStr("k")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NINFERD_ENGINE_MAX_CONTEX", "unknown variable; did you mean NINFERD_ENGINE_MAX_CONTEXT?"),
        ("NINFERD_PROFIL", "unknown variable; did you mean NINFERD_PROFILE?"),
        (
            "NINFERD_SAMPLING_POST_THINKING_TOP_K",
            "unknown variable; did you mean NINFERD_SAMPLING_POST_THINKING__TOP_K?",
        ),
        ("NINFERD_XYZZY", "unknown variable"),
        ("NINFERD_log_level", "unknown variable"),
    ],
)
def test_an_unknown_variable_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    assert refusal(sources(tmp_path, env={name: "1"})) == [f"{name}: {message}"]


def test_a_bad_variable_names_the_key(tmp_path: Path) -> None:
    assert refusal(sources(tmp_path, env={"NINFERD_SERVER_PORT": "http"})) == [
        'NINFERD_SERVER_PORT: server.port: expected an integer in 1..65535, got "http" (a string)'
    ]
    assert refusal(sources(tmp_path, env={"NINFERD_SERVER_API_KEY": ""})) == [
        "NINFERD_SERVER_API_KEY: server.api_key: expected a non-empty string, got <redacted>"
    ]


def test_overrides(tmp_path: Path) -> None:
    good = sources(tmp_path, overrides=(("server.port", "1"), ("server.port", "2")))
    assert load(good).settings.server.port == 2
    bad = sources(tmp_path, MODEL, overrides=(("server.prot", "1"), ("server.api_key", "hunter"), ("server.port", "x")))
    assert refusal(bad) == [
        "command line: server.prot: unknown key; did you mean server.port?",
        "command line: server.api_key: not accepted on the command line, where every user can read it; "
        "use server.api_keys_file",
        'command line: server.port: expected an integer in 1..65535, got "x" (a string)',
    ]
