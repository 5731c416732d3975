"""JSON from outside: sizes, syntax, type."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.json_file import read_json_object


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{}", "is not UTF-8 at byte 0"),
        (b"[" * 100_000, "is nested deeper than 64 levels"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "is nested deeper than 64 levels"),
        (b'{"a": 1, "a": 2}', "names the member 'a' twice"),
        (b'{"a": NaN}', "holds NaN, which is no JSON number"),
        (b"[1]", "must hold a JSON object, not list"),
        (b"{" + b" " * 200_000 + b"}", "is larger than 150000 bytes"),
    ],
    ids=["cut off", "wrong encoding", "endless", "too deep", "a member twice", "not a number", "a list", "too large"],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_json_object(path, max_bytes=150_000)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_json_object(tmp_path / "none.json", 100)


def test_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(b'{"a": 1}')
    assert read_json_object(path, max_bytes=8) == {"a": 1}
