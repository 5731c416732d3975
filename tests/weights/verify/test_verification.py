"""Whole models: the one that ships, as an artifact and as a directory, sound and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.locate import artifact_path
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.verification import verify_model
from tests.weights.artifact.support import write_golden


def verify(path: Path, *, with_values: bool = True) -> Findings:
    return verify_model(path, with_values=with_values, on_progress=lambda _done, _total: None)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return shutil.copyfile(artifact_path("embedded:ninfer-tiny"), tmp_path / "tiny.ninfer")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact_path("embedded:ninfer-tiny-bf16"), tmp_path / "tiny"))


def edit(path: Path, change: Any) -> None:
    """Change the directory of an artifact, whose padding must leave room for it."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[8:16], "little")
    root = json.loads(raw[32 : 32 + size])
    change(root)
    text = json.dumps(root, separators=(",", ":")).encode()
    assert len(text) <= size
    path.write_bytes(raw[:32] + text.ljust(size) + raw[32 + size :])


def test_sound_artifact(artifact: Path) -> None:
    seen: list[tuple[int, int]] = []
    findings = verify_model(artifact, with_values=True, on_progress=lambda done, total: seen.append((done, total)))
    assert (findings.errors, findings.warnings) == ([], [])
    assert seen[-1][0] == seen[-1][1] > 0


def test_sound_directory(directory: Path) -> None:
    findings = verify(directory)
    assert (findings.errors, findings.warnings) == ([], [])


def test_container_of_no_model(tmp_path: Path) -> None:
    """What can be checked is checked all the same."""
    path = tmp_path / "golden.ninfer"
    write_golden(path)
    raw = bytearray(path.read_bytes())
    raw[4096 + 26_112 : 4096 + 26_116] = b"\0\0\x80\x7f"
    path.write_bytes(raw)
    findings = verify(path)
    assert findings.errors == [
        f"{path}: activation_input_divisor of a: must be one finite number above 0, found [inf]",
        f"{path}: text: architectures is missing",
        f"{path}: object t/fp32: values: 1 of 1 are not finite; the first is 0x7f800000 at [0, 0], byte 30208 of the "
        "file",
    ]


def test_wrong_scale_is_only_seen_by_reading(artifact: Path) -> None:
    tensor = next(each for each in Artifact.open(artifact).objects.values() if getattr(each, "format", "") == "nvfp4")
    matrix = Artifact.open(artifact).matrix(tensor.id)
    span = matrix.planes["scales"].spans[0]
    raw = bytearray(artifact.read_bytes())
    raw[span.offset] = 0xFF
    artifact.write_bytes(raw)
    assert verify(artifact, with_values=False).errors == []
    (error,) = verify(artifact).errors
    assert error.startswith(f"{artifact}: object {tensor.id}: scales: 1 of ")
    assert error.endswith(f"the first is 0xff at [0, 0], byte {span.offset} of the file")


def test_missing_and_unknown_parameters(artifact: Path) -> None:
    def rename(root: Any) -> None:
        bindings = root["bindings"]
        bindings["text/layers/0/mlp/dawn"] = bindings.pop("text/layers/0/mlp/down")
        root["uses"] = [use for use in root["uses"] if use["parameter"] != "text/layers/0/mlp/down"]

    edit(artifact, rename)
    assert verify(artifact, with_values=False).errors == [
        f"{artifact}: parameter text/layers/0/mlp/down [256, 512] is missing",
        f"{artifact}: unexpected parameters: text/layers/0/mlp/dawn",
    ]


def test_component_of_an_impossible_size(artifact: Path) -> None:
    edit(artifact, lambda root: root["components"]["text"]["config"].update(num_key_value_heads=3))
    (error,) = verify(artifact, with_values=False).errors
    assert error.startswith(f"{artifact}: text: num_attention_heads")
    assert "num_key_value_heads (3)" in error


def test_stop_id_that_is_no_token(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 4096]}')
    assert verify(directory, with_values=False).errors == [
        f"{directory / 'generation_config.json'}: eos_token_id 4096 is none of the 4096 token ids"
    ]


def test_directory_that_announces_a_component_and_has_nothing_of_it(directory: Path) -> None:
    assert json.loads((directory / "config.json").read_text())["mtp_num_hidden_layers"] == 1
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}, path)
    findings = verify(directory, with_values=False)
    assert (findings.errors, findings.warnings) == ([], [])
    save_file({name: tensor for name, tensor in tensors.items() if name != "mtp.norm.weight"}, path)
    assert verify(directory, with_values=False).errors == [f"{directory}: tensor mtp.norm.weight [256] is missing"]


def test_directory_without_a_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    findings = verify(directory, with_values=False)
    assert findings.errors == []
    assert findings.warnings == [
        f"{directory / 'tokenizer.json'}: is missing; the model can be loaded but not be talked to"
    ]


def test_value_that_is_not_finite_in_a_directory(directory: Path) -> None:
    path = directory / "model.safetensors"
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    places = {}
    for name in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        places[name] = 8 + size + header[name]["data_offsets"][0]
        raw[places[name] : places[name] + 2] = np.array([0x7FC0], "<u2").tobytes()
    path.write_bytes(raw)
    assert verify(directory, with_values=False).errors == []
    assert sorted(verify(directory).errors) == [
        f"{path}: tensor model.layers.0.mlp.up_proj.weight: values: 1 of 131072 are not finite; the first is 0x7fc0 at "
        f"[0, 0], byte {places['model.layers.0.mlp.up_proj.weight']} of the file",
        f"{path}: tensor model.norm.weight: values: 1 of 256 are not finite; the first is 0x7fc0 at [0, 0], byte "
        f"{places['model.norm.weight']} of the file",
    ]


def test_bytes_between_objects(artifact: Path) -> None:
    opened = Artifact.open(artifact)
    ends = [entry.offset + entry.size_bytes for entry in opened.objects.values()]
    gap = next(end for end, entry in zip(ends, [*opened.objects.values()][1:], strict=False) if entry.offset > end)
    raw = bytearray(artifact.read_bytes())
    raw[opened.payload_start + gap] = 7
    artifact.write_bytes(raw)
    findings = verify(artifact)
    assert findings.errors == []
    assert findings.warnings == [
        f"{artifact}: 1 of the bytes between values are not zero, the first is byte {opened.payload_start + gap}"
    ]
