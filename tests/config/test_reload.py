"""What changes mean for a running daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.config.field import Reload
from ninferd.config.keys import KEYS
from ninferd.config.reload import RESTART_REASONS, Change, diff
from ninferd.config.schema import Settings
from tests.config.values import raw_values

_BASE = Settings.from_layers([{"model": {"artifact": "m"}}])


def _settings(**changed: Any) -> Settings:
    tree: dict[str, Any] = {"model": {"artifact": "m"}}
    for name, value in changed.items():
        *tables, last = name.split("__")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
        node[last] = value
    return Settings.from_layers([tree])


def test_changes_are_sorted_by_class_and_explained() -> None:
    new = _settings(server__port=9, log__level="debug", engine__max_context=64, sampling__post_thinking__top_k=3)
    found = diff(_BASE, new)
    live = "applies at once; a running request keeps what it started with"
    assert found.live == (
        Change("sampling.post_thinking.top_k", None, 3, "live", live),
        Change("log.level", "info", "debug", "live", live),
    )
    assert found.engine == (
        Change(
            "engine.max_context", 8192, 64, "engine", "the engine child is drained and replaced under the open listener"
        ),
    )
    assert found.process == (Change("server.port", 8080, 9, "process", "the listening socket is bound once, at start"),)
    assert [change.key for change in found] == [change.key for change in (*found.live, *found.engine, *found.process)]
    assert found


def test_equal_settings_have_no_difference() -> None:
    found = diff(_BASE, _settings())
    assert not found
    assert list(found) == []


def test_a_changed_secret_is_seen_but_not_shown() -> None:
    found = diff(_settings(server__api_keys={"a": "old"}), _settings(server__api_keys={"a": "new"}))
    (change,) = found
    assert (change.key, change.old, change.new) == ("server.api_keys", {"a": "<redacted>"}, {"a": "<redacted>"})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_the_changed_keys_are_found(data: st.DataObject) -> None:
    names = data.draw(st.sets(st.sampled_from(sorted(KEYS.keys() - {"model.artifact"})), max_size=5))
    values = {name: data.draw(raw_values(KEYS[name])) for name in names}
    new = _settings(**{name.replace(".", "__"): value for name, value in values.items()})
    really = {name for name in names if KEYS[name].value(new) != KEYS[name].value(_BASE)}
    assert {change.key for change in diff(_BASE, new)} == really
    assert {change.key for change in diff(new, _BASE)} == really


def test_every_process_key_says_why() -> None:
    assert RESTART_REASONS.keys() == {name for name, spec in KEYS.items() if spec.reload == "process"}


@pytest.mark.parametrize(
    ("key", "reload"),
    [
        ("model.artifact", "engine"),
        ("engine.kv_dtype", "engine"),
        ("spec.backend", "engine"),
        ("cache.host_kv_mib", "engine"),
        ("cache.host_ram_reserve_mib", "live"),
        ("media.vision", "engine"),
        ("media.cache_mib", "live"),
        ("server.host", "process"),
        ("server.api_keys_file", "live"),
        ("http.idle_keepalive_s", "process"),
        ("http.keepalive_comment_s", "live"),
        ("queue.max_pending", "live"),
        ("template.file", "live"),
        ("request_log.path", "process"),
        ("request_log.max_mib", "live"),
        ("daemon.runtime_dir", "process"),
        ("daemon.engine_max_restarts", "live"),
    ],
)
def test_the_class_of_a_key(key: str, reload: Reload) -> None:
    assert KEYS[key].reload == reload


def test_paths_are_shown_as_text() -> None:
    (change,) = diff(_BASE, _settings(template__file="/a/b"))
    assert (change.old, change.new) == (None, "/a/b")
    assert KEYS["template.file"].value(_settings(template__file="/a/b")) == Path("/a/b")
