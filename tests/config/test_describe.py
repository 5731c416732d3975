"""Words for values."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from ninferd.config.describe import plain, toml_key, toml_text
from ninferd.config.groups.model import PostThinkingSettings

_SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


@given(_VALUES)
def test_toml_text_reads_back(value: Any) -> None:
    text = toml_text(value)
    assert "\n" not in text
    assert tomllib.loads(f"x = {text}") == {"x": value}


@given(st.text())
def test_toml_keys_read_back(name: str) -> None:
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SecretStr("x"), "<redacted>"),
        ({"a": SecretStr("x")}, {"a": "<redacted>"}),
        (Path("/a"), "/a"),
        (("a", "b"), ["a", "b"]),
        (PostThinkingSettings(top_k=1), {"top_k": 1}),
        (None, None),
        (1.5, 1.5),
    ],
)
def test_plain_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected
