"""Stop strings and edge whitespace do not depend on how the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat.stop import LeadingTrim, StopMatcher, TrailingTrim, partial_suffix

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text("abc", max_size=4), max_size=8)


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    return shown, matcher.matched


def brute_force(text: str, stops: list[str]) -> tuple[str, bool]:
    """Cut before the stop string that is complete first (the longest of several)."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(PIECES, STOPS)
def test_matches_brute_force_for_every_cut(pieces: list[str], stops: list[str]) -> None:
    expected = brute_force("".join(pieces), stops)
    assert run(list("".join(pieces)), stops) == expected
    assert run(["".join(pieces)], stops) == expected
    assert run(pieces, stops) == expected


@given(PIECES, STOPS)
def test_nothing_shown_is_taken_back(pieces: list[str], stops: list[str]) -> None:
    """What is shown at any moment is a prefix of the final text."""
    matcher, shown = StopMatcher(stops), ""
    final, _ = brute_force("".join(pieces), stops)
    for piece in pieces:
        shown += matcher.push(piece)
        assert final.startswith(shown)


def test_text_that_cannot_become_a_stop_is_not_held() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("abc#") == "abc"
    assert matcher.push("d") == "#d"
    assert matcher.push("#" * 3 + "tail") == ""
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("text", "patterns", "length"),
    [("xab", ["abc"], 2), ("xabc", ["abc"], 0), ("aaa", ["aaaa"], 3), ("x", [], 0), ("ab", ["b1", "ab2"], 2)],
)
def test_partial_suffix(text: str, patterns: list[str], length: int) -> None:
    assert partial_suffix(text, patterns) == length


@given(st.lists(st.text(" \na", max_size=3), max_size=6))
def test_trims_equal_strip(pieces: list[str]) -> None:
    leading, trailing = LeadingTrim(None), TrailingTrim()
    assert "".join(trailing.push(leading.push(piece)) for piece in pieces) == "".join(pieces).strip()


def test_leading_trim_of_given_characters_only() -> None:
    trim = LeadingTrim("\n")
    assert [trim.push(piece) for piece in ("\n", "\n ", "\n")] == ["", " ", "\n"]
