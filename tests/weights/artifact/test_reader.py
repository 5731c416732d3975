"""Reading whole artifacts of all versions."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Binding, BindingPart, Component, Use
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.stored import StoredMatrix, read_spans
from tests.weights.artifact import golden
from tests.weights.artifact.support import TOKENIZER, framed


@pytest.fixture
def golden_path(tmp_path: Path) -> Path:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(golden.golden_file())
    return path


def test_directory_of_the_golden_file(golden_path: Path) -> None:
    artifact = Artifact.open(golden_path)
    assert (artifact.version, artifact.artifact_id) == (3, golden.ARTIFACT_ID)
    assert (artifact.payload_start, artifact.payload_bytes, artifact.entry_bytes) == (4096, 26_384, 30_480)
    assert dict(artifact.components) == {"text": Component({}, resources={"tokenizer.json": TOKENIZER})}
    assert list(artifact.objects) == list(golden.object_bytes())
    assert dict(artifact.bindings) == {
        "a": Binding((BindingPart("t/nvfp4", 0, 256 * 128),), is_whole=True),
        "b": Binding((BindingPart("t/nvfp4", 16_384, 32_768),)),
        "c": Binding((BindingPart("t/q4_g64_fp16", 0, 1000),), is_whole=True),
    }
    divisor = Binding((BindingPart("t/fp32", 0, 1),), is_whole=True)
    assert artifact.uses == (Use("a", "x", "AllowA4", {"activation_input_divisor": divisor}),)
    assert (artifact.metadata, artifact.provenance) == ({"name": "golden"}, {})
    assert (artifact.model_id, artifact.weights_id) == (None, None)


@pytest.mark.parametrize("object_id", golden.OBJECT_SHA256)
def test_object_bytes_of_the_golden_file(golden_path: Path, object_id: str) -> None:
    artifact = Artifact.open(golden_path)
    tensor = artifact.tensor(object_id)
    raw = read_spans(artifact.payload.spans(tensor.offset, tensor.size_bytes))
    assert hashlib.sha256(raw).hexdigest() == golden.OBJECT_SHA256[object_id]


def _layout(matrix: StoredMatrix) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (plane.dtype, plane.shape) for name, plane in matrix.planes.items()}


@pytest.mark.parametrize(
    ("object_id", "shape", "planes"),
    [
        ("t/bf16", (3, 5), {"values": ("<u2", (3, 5))}),
        ("t/fp32", (1, 1), {"values": ("<f4", (1, 1))}),
        ("t/int32", (1, 4), {"values": ("<i4", (1, 4))}),
        ("t/q4_g64_fp16", (5, 200), {"codes": ("u1", (5, 128)), "scales": ("<f2", (5, 4))}),
        ("t/q5_g64_fp16", (5, 200), {"codes": ("u1", (5, 128)), "high": ("u1", (5, 32)), "scales": ("<f2", (5, 4))}),
        ("t/q6_g64_fp16", (5, 200), {"codes": ("u1", (5, 128)), "high": ("u1", (5, 64)), "scales": ("<f2", (5, 4))}),
        ("t/q8_g32_fp16", (5, 200), {"codes": ("u1", (5, 256)), "scales": ("<f2", (5, 8))}),
        ("t/t2_g128_fp16", (5, 200), {"codes": ("u1", (5, 64)), "scales": ("<f2", (5, 2))}),
        ("t/nvfp4", (256, 128), {"codes": ("u1", (256, 64)), "scales": ("u1", (256, 8))}),
        ("t/fp8", (3, 130), {"codes": ("u1", (3, 130)), "scales": ("<u2", (3,))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_matrices_of_the_golden_file(
    golden_path: Path, object_id: str, shape: tuple[int, int], planes: dict[str, Any]
) -> None:
    matrix = Artifact.open(golden_path).matrix(object_id)
    assert (matrix.name, matrix.path, (matrix.rows, matrix.columns)) == (object_id, golden_path, shape)
    assert _layout(matrix) == planes
    assert matrix.is_swizzled == (object_id == "t/nvfp4")
    assert matrix.divisors == ((2.5,) if object_id == "t/nvfp4" else ())


def test_plane_values_of_the_golden_file(golden_path: Path) -> None:
    artifact = Artifact.open(golden_path)
    assert (
        artifact.matrix("t/bf16").planes["values"].array().tolist() == np.arange(0x3F80, 0x3F8F).reshape(3, 5).tolist()
    )
    assert artifact.matrix("t/fp32").planes["values"].array().tolist() == [[0.75]]
    assert artifact.matrix("t/int32").planes["values"].array().tolist() == [[7, 0, 2, 9]]
    scales = artifact.matrix("t/q6_g64_fp16").planes["scales"].array()
    assert scales.tolist() == [[(n % 3 + 1) * 2.0**-g for g in range(4)] for n in range(5)]
    nvfp4 = artifact.matrix("t/nvfp4").planes["scales"].array().reshape(-1)
    assert nvfp4[512 + 3] == 7 * 7 % 127  # row 0, block 7: second tile, fourth block
    assert nvfp4[2 * 512 + 16] == 3 * 129 % 127  # row 129, block 0: second row of tiles


def test_resource(golden_path: Path) -> None:
    artifact = Artifact.open(golden_path)
    assert artifact.resource(TOKENIZER) == b'{"model":{}}\n'
    with pytest.raises(InputError) as caught:
        artifact.resource(TOKENIZER, max_bytes=12)
    assert str(caught.value) == f"{golden_path}: object {TOKENIZER}: has 13 bytes; at most 12 are read"


def test_objects_asked_for_as_what_they_are_not(golden_path: Path) -> None:
    artifact = Artifact.open(golden_path)
    for ask, object_id, problem in (
        (artifact.matrix, TOKENIZER, "is a resource, not a tensor"),
        (artifact.matrix, "t/none", "does not exist"),
        (artifact.resource, "t/bf16", "is a tensor, not a resource"),
        (artifact.resource, "t/none", "does not exist"),
    ):
        with pytest.raises(InputError) as caught:
            ask(object_id)
        assert str(caught.value) == f"{golden_path}: object {object_id} {problem}"


def test_unpadded_directory_and_payload_beyond_the_last_object(tmp_path: Path) -> None:
    """Both are habits of writers, not rules."""
    directory = json.loads(golden.JSON)
    directory["files"][0]["payload_bytes"] += 1000
    path = tmp_path / "other-writer.ninfer"
    path.write_bytes(framed(directory, golden.golden_file()[4096:] + bytes(1000)))
    artifact = Artifact.open(path)
    assert (artifact.payload_start, artifact.payload_bytes) == (4096, 27_384)
    assert artifact.matrix("t/int32").planes["values"].array().tolist() == [[7, 0, 2, 9]]


def test_leading_dimensions_become_rows(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.ninfer"
    tensor = {"id": "w", "kind": "tensor", "shape": [2, 3, 5], "format": "bf16", "layout": "contiguous_le_v1"}
    path.write_bytes(framed(_directory_of(tensor, size_bytes=60), bytes(range(60))))
    matrix = Artifact.open(path).matrix("w")
    assert (matrix.rows, matrix.columns) == (6, 5)
    assert matrix.planes["values"].array().tolist() == np.arange(60, dtype="u1").view("<u2").reshape(6, 5).tolist()


def test_divisors_of_a_stack(tmp_path: Path) -> None:
    path = tmp_path / "stack.ninfer"
    tensor = {"id": "w", "kind": "tensor", "shape": [256, 64], "format": "nvfp4", "layout": "block_scale_k16_m128x4_v1"}
    size_bytes = 256 * 32 + 256 * 4 + 2 * 4
    payload = bytes(size_bytes - 8) + np.array([0.5, 3], "<f4").tobytes()
    path.write_bytes(framed(_directory_of(tensor | {"divisors": 2}, size_bytes=size_bytes), payload))
    matrix = Artifact.open(path).matrix("w")
    assert matrix.divisors == (0.5, 3.0)
    assert _layout(matrix) == {"codes": ("u1", (256, 32)), "scales": ("u1", (256, 4))}


@pytest.mark.parametrize(
    ("value", "found"),
    [(0.0, "0.0"), (-1.0, "-1.0"), (np.nan, "nan"), (np.inf, "inf")],
    ids=["zero", "negative", "nan", "inf"],
)
def test_bad_divisor(tmp_path: Path, value: float, found: str) -> None:
    path = tmp_path / "divisor.ninfer"
    tensor = {"id": "w", "kind": "tensor", "shape": [128, 64], "format": "nvfp4", "layout": "block_scale_k16_m128x4_v1"}
    payload = bytes(4096 + 512) + np.array([value], "<f4").tobytes()
    path.write_bytes(framed(_directory_of(tensor, size_bytes=4612), payload))
    with pytest.raises(InputError) as caught:
        Artifact.open(path).matrix("w")
    assert str(caught.value) == f"{path}: object w: divisor 0 is {found}, it must be finite and above 0"


def _directory_of(tensor: dict[str, Any], size_bytes: int) -> dict[str, Any]:
    return {
        "components": {"text": {"config": {}}},
        "objects": [tensor | {"offset": 0, "bytes": size_bytes}],
        "bindings": {},
        "uses": [],
        "files": [{"path": None, "payload_bytes": size_bytes}],
    }


class TestFileKinds:
    def test_symbolic_link(self, golden_path: Path) -> None:
        link = golden_path.with_name("link.ninfer")
        link.symlink_to(golden_path)
        assert Artifact.open(link).resource(TOKENIZER) == b'{"model":{}}\n'

    @pytest.mark.parametrize("kind", ["directory", "FIFO", "device", "missing", "dangling link", "NUL in the name"])
    def test_no_regular_file(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "x.ninfer"
        problem = f"not a regular file but a {kind}"
        if kind == "directory":
            path.mkdir()
        elif kind == "FIFO":
            os.mkfifo(path)
        elif kind == "device":
            path = Path("/dev/zero")
            problem = "not a regular file but a device or socket"
        else:
            problem = "No such file or directory"
        if kind == "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        if kind == "NUL in the name":
            path, problem = tmp_path / "a\0b", "embedded null byte"
        with pytest.raises(InputError) as caught:
            Artifact.open(path)
        assert str(caught.value) == f"{path}: cannot be read: {problem}"

    def test_unreadable_for_lack_of_rights(self, golden_path: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        golden_path.chmod(0)
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            Artifact.open(golden_path)


class TestChangesAfterOpening:
    def test_shrunk_before_a_matrix_is_asked_for(self, golden_path: Path) -> None:
        artifact = Artifact.open(golden_path)
        os.truncate(golden_path, 8192)
        with pytest.raises(InputError) as caught:
            artifact.matrix("t/fp8")
        assert str(caught.value) == f"{golden_path}: was changed or replaced after it was opened; open it again"

    def test_shrunk_before_a_plane_is_read(self, golden_path: Path) -> None:
        plane = Artifact.open(golden_path).matrix("t/fp8").planes["scales"]
        assert plane.array().shape == (3,)
        os.truncate(golden_path, 8192)
        with pytest.raises(InputError) as caught:
            plane.array()
        assert str(caught.value) == (
            f"{golden_path}: is 8192 bytes long, bytes 29952 to 29958 are needed: the file changed while it was read"
        )

    def test_replaced_by_another_artifact(self, golden_path: Path) -> None:
        artifact = Artifact.open(golden_path)
        other = golden_path.with_name("other")
        other.write_bytes(golden.golden_file())
        other.replace(golden_path)
        with pytest.raises(InputError, match="was changed or replaced after it was opened"):
            artifact.resource(TOKENIZER)
        assert Artifact.open(golden_path).resource(TOKENIZER) == b'{"model":{}}\n'

    def test_removed(self, golden_path: Path) -> None:
        artifact = Artifact.open(golden_path)
        golden_path.unlink()
        with pytest.raises(InputError) as caught:
            artifact.matrix("t/fp8")
        assert str(caught.value) == f"{golden_path}: cannot be read: No such file or directory"
