"""What counts as another model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.identity import model_identity
from tests.weights.raw_artifact import CONFIG, RawArtifact


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("[]")
    return directory


def test_the_same_directory_by_another_name_is_the_same_model(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert model_identity(tmp_path / "link") == model_identity(model) == model_identity(model / ".." / "model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_replaced_in_place_is_another_model(model: Path, name: str) -> None:
    before = model_identity(model)
    (model / name).write_text("{ }")
    assert model_identity(model) != before


def test_a_link_that_points_elsewhere_is_another_model(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    current = tmp_path / "current"
    current.symlink_to(model)
    before = model_identity(current)
    current.unlink()
    current.symlink_to(copy)
    assert model_identity(current) != before


def test_a_tokenizer_is_not_needed(model: Path) -> None:
    before = model_identity(model)
    (model / "tokenizer.json").unlink()
    assert model_identity(model) != before


def test_a_file_that_cannot_be_read_is_refused(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config.json: cannot be read: not a regular file but a directory"):
        model_identity(model)


def artifact(path: Path, tokenizer: bytes = b"{}", **config: object) -> Path:
    raw = RawArtifact({"text": {"config": CONFIG | config}})
    raw.resource("text", "tokenizer.json", tokenizer)
    return raw.write(path)


def test_an_artifact_by_another_name_is_the_same_model(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer")
    (tmp_path / "current").symlink_to("m.ninfer")
    assert model_identity(tmp_path / "current") == model_identity(path) == model_identity(path)


def test_a_copy_is_another_model(tmp_path: Path) -> None:
    """As for directories: a link that was turned to a copy says that something is to be loaded again."""
    first, second = artifact(tmp_path / "one"), artifact(tmp_path / "two")
    assert model_identity(first) != model_identity(second)


@pytest.mark.parametrize("change", ["tokenizer", "config", "weights"])
def test_an_artifact_written_over_is_another_model(tmp_path: Path, change: str) -> None:
    """Even where size and time of the last change stay the same, for what decides what token ids mean."""
    path = artifact(tmp_path / "m.ninfer", b"[1]")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    before = model_identity(path)
    if change == "tokenizer":
        artifact(path, b"[2]")
    elif change == "config":
        artifact(path, b"[1]", max_position_embeddings=2048)
    else:
        artifact(path, b"[1]")
        times = times[0], times[1] + 1
    os.utime(path, ns=times)
    assert model_identity(path) != before


def test_a_replaced_artifact_is_another_model(tmp_path: Path) -> None:
    path = artifact(tmp_path / "m.ninfer")
    before, times = model_identity(path), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    os.utime(artifact(tmp_path / "new"), ns=times)
    (tmp_path / "new").replace(path)
    assert model_identity(path) != before


def test_a_broken_artifact_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    path.write_bytes(b"NINFER\0\3" + bytes(40))
    with pytest.raises(InputError, match=r"m\.ninfer: json_bytes at offset 8 is 0"):
        model_identity(path)
