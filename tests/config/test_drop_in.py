"""``ninferd config set``: valid results only, nothing else touched."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.config.availability import is_available
from ninferd.config.describe import plain, toml_text
from ninferd.config.drop_in import FILE_NAME, set_value
from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from ninferd.errors import InputError
from tests.config.support import MODEL, sources
from tests.config.values import raw_values


def test_a_value_is_written_and_wins(tmp_path: Path) -> None:
    config = sources(tmp_path, MODEL + "[server]\nport = 1\n")
    result = set_value(config, "server.port", "9090")
    assert result.wins
    assert result.path == tmp_path / "conf.d" / FILE_NAME
    assert stat.S_IMODE(result.path.stat().st_mode) == 0o644
    resolved = load(config)
    assert resolved.settings == result.resolved.settings
    assert resolved.settings.server.port == 9090
    assert str(resolved.origin("server.port")) == f"{result.path}:3"


def test_earlier_values_stay(tmp_path: Path) -> None:
    config = sources(tmp_path)
    for key, text in (
        ("server.port", "1"),
        ("server.host", "::1"),
        ("server.port", "2"),
        ("sampling.seed", "18446744073709551615"),
        ("template.kwargs", '{ a = "x", b = [1] }'),
    ):
        set_value(config, key, text)
    found = load(config).settings
    assert (found.server.port, found.server.host, found.sampling.seed) == (2, "::1", 2**64 - 1)
    assert found.template.kwargs == {"a": "x", "b": [1]}


def test_a_first_value_repairs_an_incomplete_configuration(tmp_path: Path) -> None:
    config = sources(tmp_path, None)
    (tmp_path / "conf.d").rmdir()
    set_value(config, "model.artifact", "embedded:ninfer-tiny")
    assert load(config).settings.model.artifact == "embedded:ninfer-tiny"


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("server.prot", "1", "server.prot: unknown key; did you mean server.port?"),
        ("server.port", "http", 'server.port: expected an integer in 1..65535, got "http" (a string)'),
        ("server.stats_port", "8080", "server.stats_port: must differ from server.port (8080)"),
        ("server.api_key", "hunter", "server.api_key: not accepted on the command line, where every user can read it"),
        ("media.vision", "true", "media.vision = true: not available in this build"),
    ],
)
def test_a_refused_value_leaves_everything_as_it_was(tmp_path: Path, key: str, text: str, message: str) -> None:
    config = sources(tmp_path)
    set_value(config, "server.host", "localhost")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        set_value(config, key, text)
    assert message in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_fault_of_the_new_file_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path}/conf.d/{FILE_NAME}:3: server.port: expected"):
        set_value(sources(tmp_path), "server.port", "0")


def test_a_fault_elsewhere_is_a_refusal_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ninferd.toml:4: log.level: expected"):
        set_value(sources(tmp_path, MODEL + "[log]\nlevel = 'loud'\n"), "server.port", "1")
    assert not (tmp_path / "conf.d" / FILE_NAME).exists()


def test_a_higher_layer_is_noticed(tmp_path: Path) -> None:
    by_file = sources(tmp_path, conf_d={"90": "[server]\nport = 1\n"})
    assert not set_value(by_file, "server.port", "2").wins
    by_variable = sources(tmp_path, env={"NINFERD_SERVER_HOST": "::1"})
    assert not set_value(by_variable, "server.host", "::").wins


@pytest.mark.parametrize("text", ["server = 5\n", "[sampling]\npost_thinking = 5\n"])
def test_a_broken_drop_in_is_not_overwritten(tmp_path: Path, text: str) -> None:
    config = sources(tmp_path, conf_d={FILE_NAME.removesuffix(".toml"): text})
    key = "server.port" if "server" in text else "sampling.post_thinking.top_k"
    with pytest.raises(InputError, match="is not a table; repair or remove the file"):
        set_value(config, key, "1")
    assert (tmp_path / "conf.d" / FILE_NAME).read_text() == text


_SETTABLE = sorted(
    name
    for name, spec in KEYS.items()
    if not spec.secret and is_available(spec, object()) and name not in ("engine.max_context", "engine.kv_capacity")
)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_set_is_what_loads(data: st.DataObject) -> None:
    spec = KEYS[data.draw(st.sampled_from(_SETTABLE))]
    raw = data.draw(raw_values(spec))
    with tempfile.TemporaryDirectory() as directory:
        config = sources(Path(directory))
        set_value(config, spec.name, toml_text(raw))
        assert plain(spec.value(load(config).settings)) == raw
