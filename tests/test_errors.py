"""Messages of one line."""

from __future__ import annotations

import pytest

from ninferd.config.origin import ConfigError, Problem
from ninferd.errors import one_line


@pytest.mark.parametrize(
    ("message", "shown"),
    [("plain ü", "plain ü"), ("a\nb", r"a\nb"), ("\x1b[31m", r"\x1b[31m"), ("\udcff", r"\udcff"), ("a\\b\n", r"a\b\n")],
    ids=["printable", "newline", "escape", "not UTF-8", "backslash"],
)
def test_one_line(message: str, shown: str) -> None:
    assert one_line(message) == shown


def test_a_problem_is_a_line() -> None:
    error = ConfigError([Problem("x\ny.toml:3", "model.artifact", "a\nb: is missing"), Problem("z", None, "wrong")])
    assert error.lines == (r"config error: x\ny.toml:3: model.artifact: a\nb: is missing", "config error: z: wrong")
    assert str(error).splitlines() == [line.removeprefix("config error: ") for line in error.lines]
