"""``ninferd model verify``: exit status, what is printed where, checksums and progress."""

from __future__ import annotations

import hashlib
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ninferd.cli import main
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.locate import artifact_path
from tests.support.quantised_checkpoints import compressed_tensors_nvfp4
from tests.weights.artifact import golden
from tests.weights.artifact.test_older import old_file

Capture = pytest.CaptureFixture[str]
WRONG = "0" * 64
NO_LIST = "not compared: no list beside it and no --sha256"


def verify(capsys: Capture, *arguments: object) -> tuple[int, str, list[str]]:
    """(exit status, standard output, lines of standard error without progress)."""
    status = main(["model", "verify", *map(str, arguments)])
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    return status, captured.out, [line for line in lines if not re.match(r"(values|checksum): \d+ % of ", line)]


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return shutil.copyfile(artifact_path("embedded:ninfer-tiny"), tmp_path / "tiny.ninfer")


def damage_a_scale(path: Path) -> tuple[str, int]:
    """Make a scale NaN; returns object and byte."""
    opened = Artifact.open(path)
    tensor = next(each for each in opened.objects.values() if getattr(each, "format", "") == "nvfp4")
    offset = opened.matrix(tensor.id).planes["scales"].spans[0].offset
    raw = bytearray(path.read_bytes())
    raw[offset] = 0x7F
    path.write_bytes(raw)
    return tensor.id, offset


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_sound_artifact(artifact: Path, capsys: Capture) -> None:
    assert verify(capsys, artifact) == (
        0,
        f"{artifact}: no errors, no warnings; checked structure and values; SHA-256 {NO_LIST}\n",
        [],
    )


def test_progress(artifact: Path, capsys: Capture) -> None:
    artifact.with_name("SHA256SUMS").write_text(f"{sha256(artifact)}  tiny.ninfer\n")
    assert main(["model", "verify", str(artifact)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("checksum")][-1] == "checksum: 100 % of 7.3 MiB"
    assert 5 <= sum(line.startswith("values: ") for line in lines) <= 10
    assert len(lines) == len(set(lines)) <= 20


def test_wrong_value(artifact: Path, capsys: Capture) -> None:
    name, offset = damage_a_scale(artifact)
    status, out, err = verify(capsys, artifact)
    assert status == 2
    assert out == f"{artifact}: 1 error, no warnings; checked structure and values; SHA-256 {NO_LIST}\n"
    assert len(err) == 1
    assert err[0].startswith(f"error: {artifact}: object {name}: scales: 1 of ")
    assert err[0].endswith(f"the first is 0x7f at [0, 0], byte {offset} of the file")


def test_quick_reads_no_value(artifact: Path, capsys: Capture) -> None:
    damage_a_scale(artifact)
    artifact.with_name("tiny.ninfer.sha256").write_text(WRONG)
    assert verify(capsys, artifact, "--quick") == (
        0,
        f"{artifact}: no errors, no warnings; checked structure only; SHA-256 not compared (--quick)\n",
        [],
    )


def test_sidecar(artifact: Path, capsys: Capture) -> None:
    sidecar = artifact.with_name("tiny.ninfer.sha256")
    sidecar.write_text(f"{sha256(artifact)}  tiny.ninfer\n")
    status, out, _ = verify(capsys, artifact)
    assert (status, out.rpartition("; ")[2]) == (0, f"SHA-256 as expected ({sidecar})\n")
    sidecar.write_text(f"{WRONG}  tiny.ninfer\n")
    status, out, err = verify(capsys, artifact)
    assert (status, out.rpartition("; ")[2]) == (2, "SHA-256 not as expected\n")
    assert err == [f"error: {artifact}: SHA-256 is {sha256(artifact)}, expected {WRONG} ({sidecar})"]


def test_given_digest_also_with_quick(artifact: Path, capsys: Capture) -> None:
    status, out, _ = verify(capsys, artifact, "--quick", "--sha256", sha256(artifact))
    assert (status, out.rpartition("; ")[2]) == (0, "SHA-256 as expected (as given)\n")
    status, _, err = verify(capsys, artifact, "--quick", "--sha256", WRONG)
    assert (status, err) == (2, [f"error: {artifact}: SHA-256 is {sha256(artifact)}, expected {WRONG} (as given)"])


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_a_mistyped_digest_is_refused_before_anything_is_read(
    artifact: Path, capsys: Capture, options: list[str]
) -> None:
    assert main(["model", "verify", str(artifact), "--sha256", "beef", *options]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"ninferd: {artifact}: a SHA-256 has 64 hexadecimal digits, found 'beef'\n"


@pytest.mark.parametrize("command", [["model", "verify"], ["model", "inspect"]])
def test_a_name_stays_in_its_line(tmp_path: Path, capsys: Capture, command: list[str]) -> None:
    (tmp_path / "a\n\x1b[31mb").write_bytes(b"")
    assert main([*command, str(tmp_path / "a\n\x1b[31mb")]) == 2
    name = rf"{tmp_path}/a\n\x1b[31mb"
    assert capsys.readouterr().err == f"ninferd: {name}: is 0 bytes long, shorter than any header (32 bytes)\n"


def test_the_result_is_one_line_whatever_the_name(artifact: Path, capsys: Capture) -> None:
    path = artifact.rename(artifact.with_name("a\nb"))
    _, out, _ = verify(capsys, path, "--quick")
    assert out.splitlines() == [out.rstrip("\n")]
    assert out.startswith(rf"{artifact.parent}/a\nb: no errors")


def test_many_errors_are_cut(tmp_path: Path, capsys: Capture) -> None:
    """A version 2 file of the 27B model that holds none of its tensors."""
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(2))
    status, out, err = verify(capsys, path, "--quick")
    assert status == 2
    assert out.startswith(f"{path}: 963 errors, 2 warnings; ")
    assert err[0] == f"error: {path}: parameter text/token_embedding [248320, 5120] is missing"
    assert err[20] == "error: and 943 more"
    assert err[21].startswith(f"warning: {path}: resource tokenizer.json: is missing")
    assert err[22].startswith(f"warning: {path}: resource chat_template.jinja: is missing")
    assert len(err) == 23


def test_container_that_is_broken(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(golden.golden_file()[:-1])
    assert verify(capsys, path) == (
        2,
        "",
        [
            f"ninferd: {path}: is 30479 bytes long, expected 30480: 4096 before the payload and 26384 of it (truncated "
            "download?)"
        ],
    )


def test_warnings_alone_are_no_failure(artifact: Path, capsys: Capture) -> None:
    opened = Artifact.open(artifact)
    entries = list(opened.objects.values())
    gap = next(
        first.offset + first.size_bytes
        for first, second in pairwise(entries)
        if first.offset + first.size_bytes < second.offset
    )
    raw = bytearray(artifact.read_bytes())
    raw[opened.payload_start + gap] = 1
    artifact.write_bytes(raw)
    status, out, err = verify(capsys, artifact)
    assert status == 0
    assert out.startswith(f"{artifact}: no errors, 1 warning; ")
    assert err == [
        f"warning: {artifact}: 1 of the bytes between values are not zero, the first is byte "
        f"{opened.payload_start + gap}"
    ]


def test_scale_of_a_quantised_directory(tmp_path: Path, capsys: Capture) -> None:
    directory = Path(shutil.copytree(artifact_path("embedded:ninfer-tiny-bf16"), tmp_path / "tiny"))
    path, name = directory / "model.safetensors", "model.layers.1.mlp.up_proj"
    tensors = load_file(path)
    parts, _ = compressed_tensors_nvfp4(name, tensors.pop(f"{name}.weight").float())
    save_file(tensors | {each: tensor.contiguous() for each, tensor in parts.items()}, path)
    assert verify(capsys, directory)[0] == 0
    scale = parts[f"{name}.weight_scale"].clone()
    words = scale.view(torch.uint8)
    words[5, 3] = 0xC0
    parts[f"{name}.weight_scale"] = scale
    save_file(tensors | {each: tensor.contiguous() for each, tensor in parts.items()}, path)
    status, _, err = verify(capsys, directory)
    assert status == 2
    assert len(err) == 1
    assert err[0].startswith(
        f"error: {path}: tensor {name}.weight_packed: scales: 1 of {np.prod(words.shape)} are no finite scale"
    )
    assert "the first is 0xc0 at [5, 3], byte " in err[0]
