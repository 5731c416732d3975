"""What the configuration asks to be checked of a model before its weights are used."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ninferd.config.groups.model import ModelSettings
from ninferd.errors import InputError
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.opening import open_model, prepare_source, text_geometry_of
from tests.support.frontends import tiny_directory
from tests.weights.raw_artifact import text_model


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Everything in BF16."""
    return text_model(lambda _: "bf16").write(tmp_path / "m.ninfer")


def prepare(path: Path, **keys: Any) -> list[tuple[int, int]]:
    """Progress of the preparation."""
    progress: list[tuple[int, int]] = []
    source = prepare_source(
        ModelSettings(artifact=str(path), **keys), lambda done, total: progress.append((done, total))
    )
    assert source.path == path
    return progress


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_opened_by_what_is_there(artifact: Path) -> None:
    assert isinstance(open_model(artifact), ArtifactSource)
    assert isinstance(open_model(tiny_directory()), HuggingFaceSource)


def test_text_geometry_of_both_kinds(artifact: Path) -> None:
    assert text_geometry_of(open_model(artifact)).hidden_size == 128
    assert text_geometry_of(open_model(tiny_directory())).layer_types.count("full_attention") == 2


def test_nothing_is_hashed_unasked(artifact: Path) -> None:
    artifact.with_name("m.ninfer.sha256").write_text(f"{'0f' * 32}  m.ninfer\n")
    assert prepare(artifact) == []


@pytest.mark.parametrize("verify_hash", [False, True])
def test_a_configured_digest(artifact: Path, verify_hash: bool) -> None:
    size = artifact.stat().st_size
    assert prepare(artifact, verify_hash=verify_hash, sha256=sha256(artifact).upper())[-1] == (size, size)
    with pytest.raises(InputError, match=rf"m\.ninfer: SHA-256 is {sha256(artifact)}, expected {'1' * 64}"):
        prepare(artifact, verify_hash=verify_hash, sha256="1" * 64)


def test_a_digest_is_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory, and one SHA-256 is that of a file"):
        prepare(tiny_directory(), sha256="1" * 64)


@pytest.mark.parametrize("sidecar", ["m.ninfer.sha256", "SHA256SUMS"])
def test_a_digest_beside_the_artifact(artifact: Path, sidecar: str) -> None:
    """As ``sha256sum m.ninfer >SIDECAR`` writes it."""
    artifact.with_name(sidecar).write_text(f"{sha256(artifact)}  m.ninfer\n")
    assert prepare(artifact, verify_hash=True)


def test_another_digest_is_refused_with_both(artifact: Path) -> None:
    artifact.with_name("m.ninfer.sha256").write_text(f"{'0f' * 32}  m.ninfer\n")
    with pytest.raises(
        InputError, match=rf"m\.ninfer: SHA-256 is {sha256(artifact)}, expected {'0f' * 32} \(.*sha256\)"
    ):
        prepare(artifact, verify_hash=True)


def test_the_configured_digest_wins_over_the_one_beside(artifact: Path) -> None:
    artifact.with_name("SHA256SUMS").write_text(f"{sha256(artifact)}  m.ninfer\n")
    with pytest.raises(InputError, match="expected " + "1" * 64):
        prepare(artifact, verify_hash=True, sha256="1" * 64)


def test_nothing_to_compare_with_names_both_ways(artifact: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"model\.verify_hash: nothing says which SHA-256 .*m\.ninfer must have: set model\.sha256, or put "
        r"m\.ninfer\.sha256 or SHA256SUMS beside it",
    ):
        prepare(artifact, verify_hash=True)


def test_a_directory_has_a_list(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for file in tiny_directory().iterdir():
        (directory / file.name).symlink_to(file)
    with pytest.raises(InputError, match=r"model\.verify_hash: nothing says .*: list its files in .*model/SHA256SUMS"):
        prepare(directory, verify_hash=True)
    names = ("model.safetensors", "config.json")
    (directory / "SHA256SUMS").write_text("".join(f"{sha256(directory / name)}  {name}\n" for name in names))
    total = sum((directory / name).stat().st_size for name in names)
    assert prepare(directory, verify_hash=True)[-1] == (total, total)


def test_an_asserted_profile(artifact: Path) -> None:
    prepare(artifact, weights_profile="bf16")
    with pytest.raises(
        InputError, match=r"m\.ninfer: model\.weights_profile is qwen38-nvfp4, but the weights are bf16: "
    ):
        prepare(artifact, weights_profile="qwen38-nvfp4")


def test_a_profile_is_asserted_before_gigabytes_are_hashed(artifact: Path) -> None:
    with pytest.raises(InputError, match="weights_profile"):
        prepare(artifact, weights_profile="qwen38-nvfp4", verify_hash=True, sha256="1" * 64)


def test_a_file_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        prepare(tmp_path / "gone.ninfer")


def test_a_directory_of_another_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match=r"config\.json: .*llama"):
        text_geometry_of(open_model(tmp_path))


def test_an_artifact_that_is_cut_short(artifact: Path) -> None:
    artifact.write_bytes(artifact.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"m\.ninfer: is \d+ bytes long, expected \d+"):
        prepare(artifact)


def test_torch_is_not_imported() -> None:
    code = "import sys, ninferd.weights.opening; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
