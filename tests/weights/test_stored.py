"""Spans of files as arrays: mapped, joined over files, never stale."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights import stored
from ninferd.weights.stored import FileSpan, Plane, RowRun, StoredMatrix, joined, read_spans


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return path


def plane(*spans: FileSpan, dtype: str = "u1") -> Plane:
    size_bytes = sum(span.size_bytes for span in spans)
    return Plane(dtype, (size_bytes // np.dtype(dtype).itemsize,), spans)


def test_array_of_one_span_is_mapped_and_read_only(path: Path) -> None:
    values = Plane("<u2", (2, 3), (FileSpan(path, 10, 12),)).array()
    assert values.tolist() == [
        [10 + 11 * 256, 12 + 13 * 256, 14 + 15 * 256],
        [16 + 17 * 256, 18 + 19 * 256, 20 + 21 * 256],
    ]
    assert not values.flags.writeable
    assert not values.flags.owndata


def test_array_over_files_that_cuts_an_element(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"\1\2\3")
    spans = FileSpan(path, 99, 1), FileSpan(other, 0, 3)
    assert plane(*spans, dtype="<u2").array().tolist() == [99 + 256, 2 + 3 * 256]
    assert read_spans(spans) == b"\x63\1\2\3"


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 5, [("a", 10, 5)]),
        (3, 6, [("a", 13, 2), ("b", 20, 1)]),
        (5, 6, [("b", 20, 1)]),
        (4, 9, [("a", 14, 1), ("b", 20, 1), ("c", 30, 3)]),
        (6, 6, []),
    ],
)
def test_part_of_a_plane(begin: int, end: int, expected: list[tuple[str, int, int]]) -> None:
    spans = FileSpan(Path("a"), 10, 5), FileSpan(Path("b"), 20, 1), FileSpan(Path("c"), 30, 4)
    found = plane(*spans).part(begin, end)
    assert [(str(span.path), span.offset, span.size_bytes) for span in found] == expected


def test_empty_plane(path: Path) -> None:
    assert plane(FileSpan(path, 5, 0)).array().tolist() == []


def test_replaced_file_is_mapped_anew(path: Path) -> None:
    """Also with the same size, which a quantised model of the same geometry has."""
    assert plane(FileSpan(path, 0, 2)).array().tolist() == [0, 1]
    old = plane(FileSpan(path, 0, 2)).array()
    other = path.with_name("other")
    other.write_bytes(bytes(range(100, 200)))
    other.replace(path)
    assert plane(FileSpan(path, 0, 2)).array().tolist() == [100, 101]
    assert old.tolist() == [0, 1]


def test_file_that_shrank_or_grew(path: Path) -> None:
    span = FileSpan(path, 90, 10)
    assert plane(span).array()[0] == 90
    os.truncate(path, 95)
    with pytest.raises(InputError) as caught:
        plane(span).array()
    assert str(caught.value) == (
        f"{path}: is 95 bytes long, bytes 90 to 100 are needed: the file changed while it was read"
    )
    os.truncate(path, 200)
    assert plane(FileSpan(path, 90, 110)).array().tolist() == [90, 91, 92, 93, 94] + [0] * 105


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("missing", "cannot be read: No such file or directory"),
        ("directory", "cannot be read: not a regular file but a directory"),
        ("FIFO", "cannot be read: not a regular file but a FIFO"),
        ("empty", "cannot be mapped: cannot mmap an empty file"),
    ],
)
def test_file_that_cannot_be_mapped(tmp_path: Path, kind: str, problem: str) -> None:
    path = tmp_path / "file"
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    with pytest.raises(InputError) as caught:
        plane(FileSpan(path, 0, 1)).array()
    assert str(caught.value) == f"{path}: {problem}"


def test_maps_are_bounded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_OPEN_MAPS", 3)
    stored._maps.clear()
    paths = [tmp_path / str(index) for index in range(4)]
    for path in paths:
        path.write_bytes(b"x")
    for path in (*paths[:3], paths[0], paths[3]):
        plane(FileSpan(path, 0, 1)).array()
    assert list(stored._maps) == [paths[2], paths[0], paths[3]]


def test_joined_runs() -> None:
    first, second = (StoredMatrix(name, Path(name), "bf16", 9, 1, {}) for name in "ab")
    runs = (RowRun(first, 0, 2), RowRun(first, 2, 5), RowRun(first, 6, 7), RowRun(second, 7, 9), RowRun(second, 0, 1))
    assert joined(runs) == (RowRun(first, 0, 5), RowRun(first, 6, 7), RowRun(second, 7, 9), RowRun(second, 0, 1))
    assert joined(()) == ()
