"""Auxiliaries, resources and the bytes between objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ninferd.weights.artifact.directory import Binding, BindingPart, Component, Use
from ninferd.weights.artifact.plan import Contents, resource_object, tensor_object
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.writer import ArtifactWriter, Chunk
from ninferd.weights.verify import container
from ninferd.weights.verify.container import check_auxiliaries, check_gaps, check_resources
from ninferd.weights.verify.findings import Findings
from tests.weights.artifact import golden
from tests.weights.artifact.support import write_golden


def write(path: Path, contents: Contents, values: Mapping[str, Chunk]) -> Artifact:
    with ArtifactWriter(path, contents, overwrite=True) as writer:
        for name, value in values.items():
            writer.put(name, [value])
        writer.publish()
    return Artifact.open(path)


def with_auxiliary(path: Path, role: str, format: str, values: Chunk, shape: tuple[int, ...]) -> Findings:
    size = int(np.prod(shape))
    binding = Binding((BindingPart("x", 0, size),), is_whole=True)
    contents = Contents(
        (tensor_object("w", (1, 4), "bf16"), tensor_object("x", shape, format)),
        {"text": Component({})},
        {"p": Binding((BindingPart("w", 0, 2),)), "q": Binding((BindingPart("w", 2, 4),))},
        (Use("p", "in", "A16Only", {role: binding}), Use("q", "in", "A16Only", {role: binding})),
    )
    findings = Findings()
    check_auxiliaries(write(path, contents, {"w": bytes(8), "x": values}), contents.uses, findings)
    return findings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ninfer"


SIGNS = np.where(np.arange(1024) % 3, 0x3F80, 0xBF80).astype("<u2")


@pytest.mark.parametrize(
    ("role", "format", "values", "shape"),
    [
        ("activation_input_divisor", "fp32", np.array(0.5, "<f4"), ()),
        ("hadamard_signs", "bf16", SIGNS, (1024,)),
        ("input_columns", "int32", np.array([2, 0, 3, 1], "<i4"), (4,)),
    ],
    ids=["divisor", "signs", "columns"],
)
def test_sound_auxiliaries(path: Path, role: str, format: str, values: Chunk, shape: tuple[int, ...]) -> None:
    findings = with_auxiliary(path, role, format, values, shape)
    assert (findings.errors, findings.warnings) == ([], [])


ONE_DIVISOR = "must be one finite number above 0, found"


@pytest.mark.parametrize(
    ("role", "format", "values", "shape", "error"),
    [
        ("activation_input_divisor", "fp32", np.array(0, "<f4"), (), f"{ONE_DIVISOR} [0.0]"),
        ("activation_input_divisor", "fp32", np.array(np.nan, "<f4"), (), f"{ONE_DIVISOR} [nan]"),
        ("activation_input_divisor", "fp32", np.array(-2, "<f4"), (), f"{ONE_DIVISOR} [-2.0]"),
        ("activation_input_divisor", "fp32", np.array([1, 2], "<f4"), (2,), f"{ONE_DIVISOR} [1.0, 2.0]"),
        ("activation_input_divisor", "bf16", np.array(0x3F80, "<u2"), (), "object x is bf16, fp32 is needed"),
        ("hadamard_signs", "bf16", SIGNS[:1000], (1000,), "must be a multiple of 1024 signs of 1 and -1"),
        ("hadamard_signs", "bf16", SIGNS * 0, (1024,), "must be a multiple of 1024 signs of 1 and -1"),
        ("input_columns", "int32", np.array([2, 0, 2, 1], "<i4"), (4,), "must be a permutation of 0 to 3"),
        ("input_columns", "int32", np.array([4, 0, 2, 1], "<i4"), (4,), "must be a permutation of 0 to 3"),
    ],
    ids=["zero", "nan", "negative", "two", "bf16", "1000 signs", "sign 0", "column twice", "column beyond"],
)
def test_wrong_auxiliaries_are_errors_once(
    path: Path, role: str, format: str, values: Chunk, shape: tuple[int, ...], error: str
) -> None:
    findings = with_auxiliary(path, role, format, values, shape)
    assert (findings.errors, findings.warnings) == ([f"{path}: {role} of p: {error}"], [])


def test_unknown_auxiliary_is_a_warning(path: Path) -> None:
    findings = with_auxiliary(path, "rotation", "fp32", np.array(1, "<f4"), ())
    assert findings.errors == []
    assert findings.warnings == [
        f"{path}: rotation of p: is an unknown auxiliary; the use that needs it cannot be computed"
    ]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tokenizer.json", b'{"a":"\xff"}', "is not UTF-8 at byte 6"),
        ("tokenizer.json", b"{", "is not valid JSON: Expecting property name enclosed in double quotes"),
        ("tokenizer.json", b"[" * 100_000, "is not valid JSON: maximum recursion depth exceeded"),
        ("tokenizer.json", b"[]", "must hold a JSON object"),
        ("chat_template.jinja", b"\xc3", "is not UTF-8 at byte 0"),
    ],
    ids=["bytes", "cut", "deep", "array", "template"],
)
def test_resources(path: Path, name: str, content: bytes, error: str) -> None:
    contents = Contents(
        (resource_object("good", 2), resource_object("bad", len(content))),
        {"text": Component({}, resources={"generation_config.json": "good", name: "bad"})},
        {},
    )
    findings = Findings()
    check_resources(write(path, contents, {"good": b"{}", "bad": content}), contents.components, findings)
    assert len(findings.errors) == 1
    assert findings.errors[0].startswith(f"{path}: resource {name} (object bad): {error}")


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 7], ids=["whole gaps", "chunks of 7 bytes"])
def test_bytes_between_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(container, "GAP_CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "golden.ninfer"
    write_golden(path)
    findings = Findings()
    check_gaps(Artifact.open(path), findings)
    assert findings.warnings == []
    raw = bytearray(golden.golden_file())
    # after the resource; between the planes of q4; after the codes of fp8
    for offset in (4096 + 255, 4096 + 512 + 640, 4096 + 25_344 + 390):
        raw[offset] = 1
    path.write_bytes(raw)
    check_gaps(Artifact.open(path), findings)
    assert findings.warnings == [f"{path}: 3 of the bytes between values are not zero, the first is byte 4351"]
    assert findings.errors == []
