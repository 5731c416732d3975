from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat import json_text

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_writes_as_the_standard_library_does(value: Any) -> None:
    assert json_text.dumps(value) == json.dumps(value, ensure_ascii=False)
    assert json_text.dumps(value, (",", ":")) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(VALUES)
def test_reads_what_the_standard_library_writes(value: Any) -> None:
    assert json_text.loads(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["100e-2", "7.0", "1E5", "0.10", "-0.0", "1e2"])
def test_numbers_keep_their_spelling(text: str) -> None:
    number = json_text.loads(f"[{text}]")[0]
    assert json_text.dumps([{"n": number}]) == f'[{{"n": {text}}}]'
    assert str(number) == repr(number) == text
    assert number == float(text)


def test_standard_float() -> None:
    assert json_text.dumps([0.1]) == "[0.1]"


@pytest.mark.parametrize("text", ["{", "NaN", "[1,]", '"\ud800"', "[" * 100_000, "", '{"a":1}x', b"\xff"])
def test_not_json(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the reason is the parser's own)
        json_text.loads(text)
