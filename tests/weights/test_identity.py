"""What counts as another model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.identity import model_identity


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
