"""Files that cannot be configuration files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ninferd.config.files import MAX_FILE_BYTES, read_document
from ninferd.config.origin import ConfigError


def _refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a = 1\nb = = 2\n", 2, "TOML syntax: Invalid value (column 5)"),
        ("a = 1\n[t\n", 2, "TOML syntax: Expected ']' at the end of a table declaration (column 3)"),
        ("a = 1\n\nb = '''\nx\n", 5, "TOML syntax: Expected \"'''\" (at end of document)"),
        ("a = 1\n\na = 2\n", 3, "TOML syntax: Cannot overwrite a value (column 6)"),
        ("x = 1\r\n y = \r\n", 2, "TOML syntax: Invalid value (column 6)"),
    ],
)
def test_a_syntax_error_has_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode())
    assert _refusal(path) == f"{path}:{line}: {reason}"


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"a = 1\n# \xff\n")
    assert _refusal(path) == f"{path}:2: not UTF-8 text"


def test_nesting_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a." * 32 + "a = 1\n")
    assert len(read_document(path).lines) == 33
    for text, start in (("a." * 33 + "a = 1\n", "a.a.a.a"), ("a = " + "[" * 33 + "]" * 33, "a.0.0.0")):
        path.write_text(text)
        assert _refusal(path) == f"{path}: {start}: more than 32 tables or arrays in each other"


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000 + "]" * 100_000, "a = " + "9" * 5000])
def test_a_bomb_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    assert _refusal(path).startswith(f"{path}: TOML cannot be read: ")


def test_the_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("#" * (MAX_FILE_BYTES - 1) + "\n")
    assert read_document(path).tree == {}
    path.write_text("#" * MAX_FILE_BYTES + "\n")
    assert _refusal(path) == f"{path}: larger than 1048576 bytes"


def test_things_that_are_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path, "not a regular file but a directory"),
        (tmp_path / "fifo", "not a regular file but a FIFO"),
        (Path("/dev/null"), "not a regular file but a device or socket"),
        (tmp_path / "missing", "No such file or directory"),
    ):
        assert _refusal(path) == f"{path}: cannot be read: {reason}"


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("a = 1\n")
    link = tmp_path / "link.toml"
    link.symlink_to("real.toml")
    document = read_document(link)
    assert (document.path, document.tree, document.lines) == (link, {"a": 1}, {("a",): 1})
    (tmp_path / "dangling.toml").symlink_to("nowhere")
    assert _refusal(tmp_path / "dangling.toml").endswith("cannot be read: No such file or directory")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    assert _refusal(tmp_path / "loop.toml").endswith("cannot be read: Too many levels of symbolic links")
