"""From ``model.artifact`` to a directory or file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.locate import EMBEDDED_PATHS, artifact_path, default_name

ENTRY = b"NINFER\0\3"


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert artifact_path(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_artifact_whatever_its_name(tmp_path: Path, version: int) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"NINFER\0" + bytes([version]))
    assert artifact_path(str(file)) == file


def test_a_link_to_an_artifact(tmp_path: Path) -> None:
    (tmp_path / "m.ninfer").write_bytes(ENTRY)
    (tmp_path / "current").symlink_to("m.ninfer")
    assert artifact_path(str(tmp_path / "current")) == tmp_path / "current"


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "m.ninfer").write_bytes(ENTRY)
    assert artifact_path("~/model") == tmp_path / "model"
    assert artifact_path("~/m.ninfer") == tmp_path / "m.ninfer"


@pytest.mark.parametrize("name", EMBEDDED_PATHS)
def test_the_embedded_models_are_there(name: str) -> None:
    path = artifact_path(f"embedded:{name}")
    assert path.is_file() if path.suffix == ".ninfer" else (path / "config.json").is_file()


@pytest.mark.parametrize("name", ["nowhere", "file/below"])
def test_a_missing_path_says_what_is_possible(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError,
        match=rf"model\.artifact: .*{name} does not exist; it must be a \.ninfer file or a Hugging Face model dir",
    ):
        artifact_path(str(tmp_path / name))


@pytest.mark.parametrize("content", [b"", b"NINFER", b"GGUF\3\0\0\0"], ids=["empty", "cut", "gguf"])
def test_a_file_of_another_kind_is_named_by_its_first_bytes(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.ninfer"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.ninfer begins with b'.*', so it is not a \.ninfer file"):
        artifact_path(str(file))


def test_a_continuation_file(tmp_path: Path) -> None:
    file = tmp_path / "model.ninfer.part-0001"
    file.write_bytes(b"NINPRT\0\3")
    with pytest.raises(InputError, match=r"part-0001 is a continuation file of an artifact; name the entry file"):
        artifact_path(str(file))


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe cannot be read: not a regular file but a FIFO; it must be"):
        artifact_path(str(tmp_path / "pipe"))


def test_a_device() -> None:
    with pytest.raises(InputError, match=r"/dev/null cannot be read: not a regular file but a device"):
        artifact_path("/dev/null")


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json.* name one, or a \.ninfer file"):
        artifact_path(str(tmp_path))


@pytest.mark.parametrize("closed", ["directory", "file"])
def test_what_belongs_to_another_user(tmp_path: Path, closed: str) -> None:
    model = tmp_path / "closed" / "m.ninfer"
    model.parent.mkdir()
    model.write_bytes(ENTRY)
    shut = model if closed == "file" else model.parent
    shut.chmod(0o000)
    code = (
        "import os; from ninferd.weights.locate import artifact_path\n"
        "if os.getuid() == 0: os.setuid(65534)  # root enters every directory\n"
        f"artifact_path({str(model)!r})"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    shut.chmod(0o700)
    assert f"InputError: model.artifact: {model} is out of reach: Permission denied" in done.stderr


def test_an_unknown_embedded_model() -> None:
    with pytest.raises(
        InputError, match="no embedded model 'other'; known: embedded:ninfer-tiny, embedded:ninfer-tiny-bf16"
    ):
        artifact_path("embedded:other")


def test_names_of_models_without_a_configured_name(tmp_path: Path) -> None:
    (tmp_path / "Qwen3.5-0.8B").mkdir()
    (tmp_path / "current").symlink_to("Qwen3.5-0.8B")
    assert default_name("embedded:ninfer-tiny") == "ninfer-tiny"
    assert default_name(str(tmp_path / "current")) == "Qwen3.5-0.8B"
    assert default_name(str(tmp_path / "qwen3.8-27b.ninfer")) == "qwen3.8-27b"


def test_torch_is_not_imported() -> None:
    code = "import sys, ninferd.weights.locate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
