"""From ``model.artifact`` to a directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.locate import artifact_directory


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert artifact_directory(str(tmp_path)) == tmp_path


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert artifact_directory("~/model") == tmp_path / "model"


def test_the_embedded_model() -> None:
    directory = artifact_directory("embedded:ninfer-tiny")
    assert (directory / "config.json").is_file()


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.artifact: .*nowhere does not exist"):
        artifact_directory(str(tmp_path / "nowhere"))


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(InputError, match=r"model\.gguf is not a directory"):
        artifact_directory(str(file))


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        artifact_directory(str(tmp_path))


def test_a_directory_of_another_user(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "model").mkdir(parents=True)
    closed.chmod(0o000)
    code = (
        "import os; from ninferd.weights.locate import artifact_directory\n"
        "if os.getuid() == 0: os.setuid(65534)  # root enters every directory\n"
        f"artifact_directory({str(closed / 'model')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    closed.chmod(0o700)
    refusal = f"InputError: model.artifact: {closed / 'model'} is out of reach: Permission denied"
    assert refusal in done.stderr


def test_an_unknown_embedded_model() -> None:
    with pytest.raises(InputError, match="no embedded model 'other'; known: embedded:ninfer-tiny"):
        artifact_directory("embedded:other")


def test_torch_is_not_imported() -> None:
    code = "import sys, ninferd.weights.locate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
