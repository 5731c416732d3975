"""Precedence, merging and provenance of the layers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from ninferd.config.describe import plain, toml_text
from ninferd.config.keys import KEYS, KeySpec
from ninferd.config.layers import ResolvedConfig, load, runtime_dir
from ninferd.config.origin import LayerName, Origin
from tests.config.support import MODEL, refusal, sources
from tests.config.values import raw_values

_LAYERS: tuple[tuple[LayerName, str], ...] = (
    ("base", "ninferd.toml"),
    ("profile", "profiles/parent.toml"),
    ("profile", "profiles/child.toml"),
    ("conf.d", "conf.d/10.toml"),
    ("conf.d", "conf.d/20.toml"),
    ("environment", ""),
    ("command line", "command line"),
)


def _load_with(root: Path, spec: KeySpec, given_values: dict[int, Any]) -> ResolvedConfig:
    """Set ``spec`` to ``given_values[n]`` in the n-th layer only, every file having some other lines first."""
    texts = {path: "# first line\n" for _, path in _LAYERS[:5]}
    texts["ninferd.toml"] += 'profile = "child"\n'
    texts["profiles/child.toml"] += 'extends = "parent"\n'
    for number in given_values.keys() & set(range(5)):
        table, name = ".".join(spec.path[:-1]), spec.path[-1]
        texts[_LAYERS[number][1]] += f"[{table}]\n\n{name} = {toml_text(given_values[number])}\n"
    if spec.name != "model.artifact":
        texts["profiles/parent.toml"] += "" if "[model]" in texts["profiles/parent.toml"] else "[model]\n"
        lines = texts["profiles/parent.toml"].replace("[model]\n", '[model]\nartifact = "m"\n', 1)
        texts["profiles/parent.toml"] = lines
    config = sources(
        root,
        texts["ninferd.toml"],
        profiles={"parent": texts["profiles/parent.toml"], "child": texts["profiles/child.toml"]},
        conf_d={"10": texts["conf.d/10.toml"], "20": texts["conf.d/20.toml"]},
        env={spec.env: toml_text(given_values[5])} if 5 in given_values else {},
        overrides=((spec.name, toml_text(given_values[6])),) if 6 in given_values else (),
    )
    with mock.patch("ninferd.config.rules.violations", return_value=()):  # single keys, whatever the others say
        return load(config)


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _revealed(item) for name, item in value.items()}
    return plain(value)


def _merged(values: list[Any]) -> Any:
    """What tables and everything else become, lowest first."""
    if isinstance(values[-1], dict):
        return {name: item for value in values for name, item in value.items()}
    return values[-1]


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_the_highest_layer_that_sets_a_key_wins(name: str, data: st.DataObject) -> None:
    spec = KEYS[name]
    candidates = range(6 if spec.secret else 7)  # no secret on the command line
    chosen = data.draw(st.sets(st.sampled_from(candidates), min_size=1).map(sorted))
    values = {number: data.draw(raw_values(spec)) for number in chosen}
    with tempfile.TemporaryDirectory() as directory:
        resolved = _load_with(Path(directory), spec, values)
        layer, path = _LAYERS[chosen[-1]]
        file = str(Path(directory) / path) if path.endswith(".toml") else path or spec.env
    assert _revealed(spec.value(resolved.settings)) == _merged(list(values.values()))
    origin = resolved.origin(name)
    assert (origin.layer, origin.file) == (layer, file)


def test_every_line_of_every_file_is_traced(tmp_path: Path) -> None:
    config = sources(
        tmp_path,
        '# base\nprofile = "child"\nmodel.artifact = "m"\n[engine]\nmax_context = 1\nkv_capacity = 1024\n',
        profiles={
            "parent": "[engine]\nmax_context = 2 # parent\nmax_concurrency = 2\n[server]\nport = 1\n",
            "child": 'extends = "parent"\n\nserver = { host = "h" }\n[engine]\n"max_context" = 3\n',
        },
        conf_d={"b": "[compat]\nmodel_alias = [\n  'x',\n]\n", "a": "compat.model_alias = []\n"},
        env={"NINFERD_LOG_LEVEL": "debug"},
        overrides=(("sampling.seed", "1"),),
    )
    resolved = load(config)
    child, parent = tmp_path / "profiles/child.toml", tmp_path / "profiles/parent.toml"
    assert {name: str(resolved.origin(name)) for name in KEYS if resolved.is_given(name)} == {
        "model.artifact": f"{tmp_path}/ninferd.toml:3",
        "engine.kv_capacity": f"{tmp_path}/ninferd.toml:6",
        "engine.max_concurrency": f"{parent}:3",
        "server.port": f"{parent}:5",
        "server.host": f"{child}:3",
        "engine.max_context": f"{child}:5",
        "compat.model_alias": f"{tmp_path}/conf.d/b.toml:2",
        "log.level": "NINFERD_LOG_LEVEL",
        "sampling.seed": "command line",
    }
    assert resolved.origin("engine.dtype") == Origin("default", "built-in", None)
    assert resolved.profile == "child"
    names = [path.name for path in resolved.files]
    assert names == ["ninferd.toml", "parent.toml", "child.toml", "a.toml", "b.toml"]
    assert resolved.settings.engine.max_context == 3


def test_tables_merge_and_arrays_replace(tmp_path: Path) -> None:
    config = sources(
        tmp_path,
        MODEL + "[template.kwargs]\na = 1\nb = { x = 1 }\n[compat]\nmodel_alias = ['one', 'two']\n",
        conf_d={"1": "[template.kwargs]\nb = { y = 2 }\nc = 3\n[compat]\nmodel_alias = ['three']\n"},
    )
    settings_ = load(config).settings
    assert settings_.template.kwargs == {"a": 1, "b": {"x": 1, "y": 2}, "c": 3}
    assert settings_.compat.model_alias == ("three",)


@pytest.mark.parametrize(
    ("flag", "variable", "in_file", "chosen"),
    [
        ("a", "b", "c", "a"),
        (None, "b", "c", "b"),
        (None, None, "c", "c"),
        (None, "", "c", "c"),
        (None, None, None, None),
    ],
)
def test_who_chooses_the_profile(
    tmp_path: Path, flag: str | None, variable: str | None, in_file: str | None, chosen: str | None
) -> None:
    config = sources(
        tmp_path,
        (f'profile = "{in_file}"\n' if in_file else "") + MODEL,
        profile=flag,
        profiles={name: f'model.id = "{name}"\n' for name in "abc"},
        env={} if variable is None else {"NINFERD_PROFILE": variable},
    )
    resolved = load(config)
    assert (resolved.profile, resolved.settings.model.id) == (chosen, chosen)


def test_a_missing_base_file_is_an_empty_one_unless_asked_for(tmp_path: Path) -> None:
    config = sources(tmp_path, None, overrides=(("model.artifact", "m"),))
    assert load(config).files == ()
    asked = type(config)(**{**vars(config), "base_file_required": True})
    assert refusal(asked) == [f"{tmp_path}/ninferd.toml: cannot be read: No such file or directory"]


def test_a_missing_artifact_says_what_to_give(tmp_path: Path) -> None:
    assert refusal(sources(tmp_path, "")) == [
        f"{tmp_path}/ninferd.toml: model.artifact: required: the path of a .ninfer file or a model directory, or "
        '"embedded:ninfer-tiny"'
    ]


def test_all_problems_of_all_layers_come_at_once(tmp_path: Path) -> None:
    config = sources(
        tmp_path,
        "[server]\nport = 0\n[engine]\nmax_context = '8'\n",
        profile="nowhere",
        conf_d={"1": "[broken\n", "2": "[log]\nlevle = 'info'\n"},
        env={"NINFERD_LOG_LEVEL": "loud", "NINFERD_LOG_LEVLE": "info"},
        overrides=(("queue.max_pending", "0"),),
    )
    where = [problem.split(": ")[0] for problem in refusal(config)]
    assert where == [
        "command line",  # the profile
        f"{tmp_path}/conf.d/1.toml:1",
        "NINFERD_LOG_LEVLE",
        f"{tmp_path}/ninferd.toml:2",
        f"{tmp_path}/ninferd.toml:4",
        f"{tmp_path}/conf.d/2.toml:2",
        "NINFERD_LOG_LEVEL",
        "command line",
    ]


def test_systemd_tells_the_default_runtime_directory(tmp_path: Path) -> None:
    env = {"RUNTIME_DIRECTORY": "/run/one:/run/two"}
    resolved = load(sources(tmp_path, env=env))
    assert resolved.settings.daemon.runtime_dir == Path("/run/one")
    assert resolved.origin("daemon.runtime_dir") == Origin("default", "$RUNTIME_DIRECTORY")
    assert not resolved.is_given("daemon.runtime_dir")
    explicit = sources(tmp_path, MODEL + '[daemon]\nruntime_dir = "/x"\n', env=env)
    assert load(explicit).settings.daemon.runtime_dir == Path("/x")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("[daemon]\nruntime_dir = '/x'\n[server]\nport = 'bad'\n", "/x"),
        ("[daemon]\nruntime_dir = 5\n", "/run/ninferd"),
        ("daemon = 5\n", "/run/ninferd"),
        ("[broken\n", "/run/ninferd"),
    ],
)
def test_the_runtime_directory_is_known_even_of_a_broken_configuration(
    tmp_path: Path, base: str, expected: str
) -> None:
    assert runtime_dir(sources(tmp_path, base)) == Path(expected)


def test_only_visible_toml_files_are_drop_ins(tmp_path: Path) -> None:
    config = sources(tmp_path, conf_d={"10": "[log]\nlevel = 'debug'\n"})
    (tmp_path / "conf.d/.#10.toml").symlink_to("editor@host.123")
    (tmp_path / "conf.d/20.toml~").write_text("nonsense")
    assert [path.name for path in load(config).files] == ["ninferd.toml", "10.toml"]


def test_a_drop_in_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    config = sources(tmp_path)
    (tmp_path / "conf.d").rmdir()
    assert load(config).files == (tmp_path / "ninferd.toml",)
    (tmp_path / "conf.d").write_text("")
    assert refusal(config) == [f"{tmp_path}/conf.d: cannot be listed: Not a directory"]


def test_warnings_do_not_refuse(tmp_path: Path) -> None:
    resolved = load(sources(tmp_path, MODEL + "[thinking]\ndefault_budget = 9000\n"))
    assert [str(warning) for warning in resolved.warnings] == [
        f"{tmp_path}/ninferd.toml:4: thinking.default_budget: 9000 can never be reached below "
        "limits.default_max_tokens = 8192"
    ]


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=2), st.integers(-(2**63), 2**63), min_size=1, max_size=3),
    st.text(),
)
@settings(max_examples=20, deadline=None)
def test_values_survive_the_way_through_a_file(kwargs: dict[str, int], text: str) -> None:
    expected = {**kwargs, "t": text}
    tree = {"model": {"artifact": "m"}, "template": {"kwargs": expected}}
    with tempfile.TemporaryDirectory() as directory:
        resolved = load(sources(Path(directory), tomli_w.dumps(tree)))
    assert resolved.settings.template.kwargs == expected
