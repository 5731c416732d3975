"""Versions 1 and 2: the same bytes, a flat list of names, other spellings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import ResourceObject, TensorObject
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.stored import read_spans
from tests.weights.artifact import golden

OLD_SPELLING = {
    "bf16": "BF16",
    "fp32": "FP32",
    "int32": "I32",
    "q4_g64_fp16": "Q4G64_F16S",
    "q5_g64_fp16": "Q5G64_F16S",
    "q6_g64_fp16": "Q6G64_F16S",
    "q8_g32_fp16": "W8G32_F16S",
    "nvfp4": "NVFP4",
    "fp8_e4m3fn_row_bf16": "FP8_E4M3FN_ROW_BF16S",
    "contiguous_le_v1": "contiguous-le-v1",
    "row_split_k128_v1": "row-split-k128-v1",
    "block_scale_k16_m128x4_v1": "blockscale-k16-m128x4-v1",
    "row_scale_v1": "row-scale-v1",
    "raw_bytes_v1": "raw-bytes-v1",
}


def old_objects(*, version: int = 2) -> list[dict[str, Any]]:
    """The golden objects that the version has, at the same payload offsets."""
    newer = {"t2_g128_fp16"} | ({"nvfp4", "fp8_e4m3fn_row_bf16"} if version == 1 else set())
    records = []
    for record in json.loads(golden.JSON)["objects"]:
        if record.get("format") in newer:
            continue
        spelled = {name: OLD_SPELLING.get(str(value), value) for name, value in record.items()}
        spelled["name"] = spelled.pop("id")
        records.append(spelled)
    return records


def old_root(version: int) -> dict[str, Any]:
    if version == 1:
        return {"model_id": "qwen3.6-27b", "objects": old_objects(version=1)}
    return {"identity": {"model_id": "qwen3.8-27b", "weights_id": "nvfp4"}, "objects": old_objects()}


def old_file(version: int, root: dict[str, Any] | None = None) -> bytes:
    text = json.dumps(old_root(version) if root is None else root, separators=(",", ":")).encode()
    head = b"NINFER\0" + bytes([version]) + len(text).to_bytes(8, "little") + text
    return head.ljust(-(-len(head) // 4096) * 4096, b"\0") + golden.golden_file()[golden.PAYLOAD_START :]


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_objects_have_the_new_spellings_and_the_same_bytes(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(version))
    artifact = Artifact.open(path)
    assert artifact.version == version
    expected = ("qwen3.6-27b", None) if version == 1 else ("qwen3.8-27b", "nvfp4")
    assert (artifact.model_id, artifact.weights_id) == expected
    assert (artifact.artifact_id, dict(artifact.components), dict(artifact.bindings), artifact.uses) == (
        None,
        {},
        {},
        (),
    )
    content = golden.object_bytes()
    new_records = {record["id"]: record for record in json.loads(golden.JSON)["objects"]}
    assert len(artifact.objects) == (8 if version == 1 else 10)
    for name, entry in artifact.objects.items():
        if isinstance(entry, ResourceObject):
            assert (entry.encoding, artifact.resource(name)) == ("raw_bytes_v1", content[name])
            continue
        assert isinstance(entry, TensorObject)
        assert (entry.format, entry.layout) == (new_records[name]["format"], new_records[name]["layout"])
        assert read_spans(artifact.payload.spans(entry.offset, entry.size_bytes)) == content[name]
        assert artifact.matrix(name).format == entry.format


def test_file_may_go_on_after_the_last_object(tmp_path: Path) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(2) + bytes(5000))
    assert Artifact.open(path).matrix("t/int32").planes["values"].array().tolist() == [[7, 0, 2, 9]]


def _with(version: int, **changes: Any) -> dict[str, Any]:
    """The root with members of object 1, a BF16 tensor, changed; None removes one."""
    root = old_root(version)
    for name, value in changes.items():
        if value is None:
            del root["objects"][1][name]
        else:
            root["objects"][1][name] = value
    return root


V2_FORMATS = "BF16, FP32, I32, Q4G64_F16S, Q5G64_F16S, Q6G64_F16S, W8G32_F16S, NVFP4, FP8_E4M3FN_ROW_BF16S"
V2_LAYOUTS = "contiguous-le-v1, row-split-k128-v1, blockscale-k16-m128x4-v1, row-scale-v1"


@pytest.mark.parametrize(
    ("version", "root", "problem"),
    [
        pytest.param(
            2, {"model_id": "m", "objects": []}, "directory: member 'identity' is missing", id="v1 root in a v2 file"
        ),
        pytest.param(1, old_root(2), "directory: member 'model_id' is missing", id="v2 root in a v1 file"),
        pytest.param(
            2,
            old_root(2) | {"metadata": {}},
            "directory: unknown member 'metadata'; known are identity, objects",
            id="unknown member of the root",
        ),
        pytest.param(
            2,
            old_root(2) | {"identity": {"model_id": "m"}},
            "directory: identity: member 'weights_id' is missing",
            id="no weights_id",
        ),
        pytest.param(
            2,
            old_root(2) | {"identity": {"model_id": "", "weights_id": "w"}},
            "directory: identity: model_id must be a non-empty string of valid Unicode without NUL, found ''",
            id="empty model_id",
        ),
        pytest.param(2, old_root(2) | {"objects": []}, "objects is empty", id="no objects"),
        pytest.param(2, _with(2, name=None), "objects[1]: member 'name' is missing", id="no name"),
        pytest.param(2, _with(2, name="t/q4_g64_fp16"), "object t/q4_g64_fp16 is listed twice", id="duplicate name"),
        pytest.param(
            2, _with(2, kind="blob"), "object t/bf16: kind must be 'tensor' or 'resource', found 'blob'", id="kind"
        ),
        pytest.param(2, _with(2, kind=None), "object t/bf16: member 'kind' is missing", id="no kind"),
        pytest.param(
            2,
            _with(2, divisors=1),
            "object t/bf16: unknown member 'divisors'; known are name, kind, shape, format, layout, offset, bytes",
            id="divisors are version 3",
        ),
        pytest.param(
            2,
            _with(2, format="bf16"),
            f"object t/bf16: format bf16 is a spelling of version 3; this version has {V2_FORMATS}",
            id="v3 spelling of a format",
        ),
        pytest.param(
            2,
            _with(2, layout="contiguous_le_v1"),
            f"object t/bf16: layout contiguous_le_v1 is a spelling of version 3; this version has {V2_LAYOUTS}",
            id="v3 spelling of a layout",
        ),
        pytest.param(
            2,
            _with(2, offset=10),
            "object t/bf16: starts at offset 10, before the end of the previous object at 13",
            id="overlap",
        ),
        pytest.param(
            1,
            _with(1, offset=26_368 - 16),
            "object t/q4_g64_fp16: starts at offset 512, before the end of the previous object at 26382",
            id="order",
        ),
    ],
)
def test_damaged_directory(tmp_path: Path, version: int, root: dict[str, Any], problem: str) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(version, root))
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    assert str(caught.value) == f"{path}: {problem}"


def test_file_ends_before_the_last_object(tmp_path: Path) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(2)[:-1])
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    assert str(caught.value) == (
        f"{path}: object t/int32: bytes 26368 to 26384 lie beyond the payload, which has 26383 bytes"
    )


@pytest.mark.parametrize("cut", [8, 15], ids=["after the magic", "in the header"])
def test_header_cut(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(2)[:cut])
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    assert str(caught.value) == f"{path}: is {cut} bytes long, shorter than any header (32 bytes)"


@pytest.mark.parametrize(
    ("version", "format", "problem"),
    [
        (2, "T2G128_F16S", "format 'T2G128_F16S' is unknown"),
        (1, "NVFP4", "format 'NVFP4' is unknown"),
    ],
    ids=["t2 is version 3", "nvfp4 is version 2"],
)
def test_format_that_the_version_lacks_only_matters_once_used(
    tmp_path: Path, version: int, format: str, problem: str
) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(version, _with(version, format=format)))
    artifact = Artifact.open(path)
    assert artifact.tensor("t/bf16").format == format
    with pytest.raises(InputError) as caught:
        artifact.matrix("t/bf16")
    assert str(caught.value).startswith(f"{path}: object t/bf16: {problem}; known are bf16, ")
