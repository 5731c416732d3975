"""Values out of files in messages: all that fits is shown, and nothing is ever long."""

from __future__ import annotations

from typing import Any

import pytest

from ninferd.weights.artifact.text import shown

NESTED: list[Any] = []
for _ in range(60):
    NESTED = [NESTED] * 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([3, -1], "[3, -1]"),
        ([2.5, "a\n", None, True], r"[2.5, 'a\n', null, true]"),
        ([], "an array of 0 items"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (list(range(9)), "an array of 9 items"),
        (["x" * 79], "an array of 1 items"),
        ([[1]], "an array of 1 items"),
        ([{}], "an array of 1 items"),
        (NESTED, "an array of 8 items"),
        (10**100, "1" + "0" * 79 + "..."),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_shown(value: Any, text: str) -> None:
    assert shown(value) == text
