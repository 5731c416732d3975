"""API keys: who may read the file, what it may hold, and that nothing prints one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from ninferd.config.groups.http import ServerSettings
from ninferd.config.layers import load
from ninferd.config.origin import ConfigError
from ninferd.config.secrets import ApiKeys, load_api_keys
from ninferd.config.show import as_json, as_toml, select
from tests.config.support import MODEL, sources

_FSTAT = os.fstat


def _key_file(root: Path, text: str, mode: int = 0o600) -> ServerSettings:
    path = root / "keys"
    path.write_text(text)
    path.chmod(mode)
    return ServerSettings(api_keys_file=path)


def _refusal(server: ServerSettings, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_api_keys(server, env or {})
    return str(caught.value)


def test_labels_of_keys(tmp_path: Path) -> None:
    server = _key_file(tmp_path, "# agents\n\nalice:key-a\n bob:key:with:colons \r\n")
    server = server.model_copy(update={"api_key": SecretStr("inline"), "api_keys": {"carol": SecretStr("key-c")}})
    keys = load_api_keys(server, {})
    assert keys.required
    asked = ("key-a", "key:with:colons", "inline", "key-c", "key-", "key-aa", "", "alice", "ключ", "\udcff")
    assert [keys.label_of(key) for key in asked] == ["alice", "bob", "default", "carol"] + [None] * 6


def test_no_key_means_open() -> None:
    keys = load_api_keys(ServerSettings(), {})
    assert not keys.required
    assert keys.label_of("") is None


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("alice:a\njust-a-key\n", 2, "label:key expected, with a label of 1 to 64 letters"),
        ("just-a-key:\n", 1, "label:key expected, with a label of 1 to 64 letters"),
        (":key\n", 1, "label:key expected, with a label of 1 to 64 letters"),
        ("a b:key\n", 1, "label:key expected, with a label of 1 to 64 letters"),
        ("alice:has space\n", 1, 'the key labelled "alice" must be 1 to 4096 printable ASCII characters'),
        ("alice:é\n", 1, 'the key labelled "alice" must be 1 to 4096 printable ASCII characters'),
        (f"alice:{'k' * 4097}\n", 1, 'the key labelled "alice" must be 1 to 4096 printable ASCII characters'),
        ("alice:a\n\nalice:b\n", 3, 'the label "alice" is used twice'),
        ("alice:a\nbob:a\n", 2, 'the key labelled "bob" also has another label'),
    ],
)
def test_a_bad_line_is_named_without_its_key(tmp_path: Path, text: str, line: int, reason: str) -> None:
    problem = _refusal(_key_file(tmp_path, text))
    assert problem.startswith(f"{tmp_path}/keys:{line}: {reason}")
    assert "has space" not in problem
    assert "just-a-key" not in problem
    assert "kkk" not in problem


def test_all_bad_lines_come_at_once(tmp_path: Path) -> None:
    assert _refusal(_key_file(tmp_path, "x\ny\n")).count("\n") == 1


@pytest.mark.parametrize(
    ("mode", "excess"), [(0o640, 0o040), (0o604, 0o004), (0o644, 0o044), (0o666, 0o066), (0o700, 0o100)]
)
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int, excess: int) -> None:
    assert _refusal(_key_file(tmp_path, "alice:a\n", mode)) == (
        f"{tmp_path}/keys: server.api_keys_file: cannot be used: mode {mode:04o} lets others in ({excess:04o}); "
        "chmod 600 it"
    )


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_private_modes(tmp_path: Path, mode: int) -> None:
    assert load_api_keys(_key_file(tmp_path, "alice:a\n", mode), {}).label_of("a") == "alice"


def test_a_systemd_credential_may_be_readable_by_the_group_of_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _key_file(tmp_path, "alice:a\n", 0o440)
    monkeypatch.setattr("os.fstat", _as_owner(0))
    assert load_api_keys(server, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).label_of("a") == "alice"
    assert "mode 0440 lets others in (0040)" in _refusal(server, {"CREDENTIALS_DIRECTORY": "/elsewhere"})
    monkeypatch.setattr("os.fstat", _as_owner(12345))  # not systemd's doing
    assert "mode 0440 lets others in (0040)" in _refusal(server, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    monkeypatch.setattr("os.fstat", _as_owner(0))
    (tmp_path / "keys").chmod(0o444)
    assert "mode 0444 lets others in (0004)" in _refusal(server, {"CREDENTIALS_DIRECTORY": str(tmp_path)})


def _as_owner(uid: int) -> Callable[[int], os.stat_result]:
    """``os.fstat`` that reports another owner: the test may not be root."""

    def fstat(descriptor: int) -> os.stat_result:
        fields = list(_FSTAT(descriptor))
        fields[4] = uid
        return os.stat_result(fields)

    return fstat


def test_files_that_cannot_be_key_files(tmp_path: Path) -> None:
    missing = ServerSettings(api_keys_file=tmp_path / "none")
    assert _refusal(missing).endswith("cannot be used: No such file or directory")
    directory = ServerSettings(api_keys_file=tmp_path)
    assert _refusal(directory).endswith("cannot be used: not a regular file but a directory")
    huge = _key_file(tmp_path, "#" * ((1 << 20) + 1))
    assert _refusal(huge).endswith("cannot be used: larger than 1048576 bytes")


def test_nothing_prints_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-is-secret"
    text = f'[server]\napi_key = "{secret}"\napi_keys = {{ alice = "{secret}" }}\n'
    resolved = load(sources(tmp_path, MODEL + text, env={"NINFERD_SERVER_API_KEY": secret}))
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s %r %r", resolved.settings, resolved.settings, ApiKeys({"alice": secret}))
    outputs = [
        as_toml(resolved, select(None), origin=True),
        as_json(resolved, select(None), origin=True),
        resolved.settings.model_dump_json(),
        str(resolved.settings.model_dump()),
        repr(resolved.settings),
        repr(resolved),
        repr(resolved.layers),
        caplog.text,
    ]
    assert resolved.settings.server.api_key == SecretStr(secret)
    assert all(secret not in output for output in outputs)
    assert 'api_key = "<redacted>"' in outputs[0]
    assert 'api_keys = { alice = "<redacted>" }' in outputs[0]
