"""Artifacts of several files: the cut, objects across its borders, and parts that are not the right ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Component, ResourceObject
from ninferd.weights.artifact.plan import Contents, plan_artifact, tensor_object
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.stored import read_spans
from tests.weights.artifact import golden
from tests.weights.artifact.support import TOKENIZER, golden_contents, write_golden

LIMIT = 8192
"""Leaves 4096 bytes of payload for each file: 26,384 bytes need seven."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    entry = tmp_path / "golden.ninfer"
    write_golden(entry, max_file_bytes=LIMIT)
    return entry


def part(entry: Path, index: int) -> Path:
    return entry.with_name(f"golden.ninfer.part-{index:04d}")


def test_files_of_a_cut_artifact(path: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in path.parent.iterdir()}
    last = 4096 + 26_384 - 6 * 4096
    expected = {"golden.ninfer": 8192} | {f"golden.ninfer.part-{i:04d}": 8192 for i in range(1, 6)}
    assert sizes == expected | {"golden.ninfer.part-0006": last}
    assert part(path, 3).read_bytes()[:32] == b"NINPRT\0\x03" + (3).to_bytes(8, "little") + golden.ARTIFACT_ID
    assert part(path, 3).read_bytes()[32:4096] == bytes(4064)
    payload = path.read_bytes()[4096:] + b"".join(part(path, i).read_bytes()[4096:] for i in range(1, 7))
    assert payload == golden.golden_file()[4096:]


def test_every_object_across_the_borders(path: Path) -> None:
    artifact = Artifact.open(path)
    for name, content in golden.object_bytes().items():
        entry = artifact.objects[name]
        assert read_spans(artifact.payload.spans(entry.offset, entry.size_bytes)) == content
        if isinstance(entry, ResourceObject):
            assert artifact.resource(name) == content
            continue
        found = [plane.array().tobytes() for plane in artifact.matrix(name).planes.values()]
        specs = [spec for spec in artifact.planes(entry) if spec.name != "divisors"]
        assert found == [content[spec.offset : spec.end] for spec in specs]


def test_a_plane_in_several_files(path: Path) -> None:
    codes = Artifact.open(path).matrix("t/nvfp4").planes["codes"]
    assert [(span.path, span.offset, span.size_bytes) for span in codes.spans] == [
        (part(path, 1), 4096 + 2560, 1536),
        *((part(path, i), 4096, 4096) for i in (2, 3, 4)),
        (part(path, 5), 4096, 16_384 - 1536 - 3 * 4096),
    ]


@pytest.mark.parametrize(
    ("offset", "size_bytes", "expected"),
    [
        (4094, 2, [(0, 8190, 2)]),
        (4095, 1, [(0, 8191, 1)]),
        (4095, 2, [(0, 8191, 1), (1, 4096, 1)]),
        (4096, 1, [(1, 4096, 1)]),
        (4095, 4098, [(0, 8191, 1), (1, 4096, 4096), (2, 4096, 1)]),
        (26_383, 1, [(6, 4096 + 1807, 1)]),
    ],
)
def test_spans_at_a_border(path: Path, offset: int, size_bytes: int, expected: list[tuple[int, int, int]]) -> None:
    files = [path, *(part(path, index) for index in range(1, 7))]
    spans = Artifact.open(path).payload.spans(offset, size_bytes)
    assert [(files.index(span.path), span.offset, span.size_bytes) for span in spans] == expected


@pytest.mark.parametrize(
    ("max_file_bytes", "payloads"),
    [
        (None, [26_384]),
        (30_480, [26_384]),
        (30_479, [24_576, 1808]),
        (16_384, [12_288, 12_288, 1808]),
        (16_383, [8192, 8192, 8192, 1808]),
        (8192, [4096] * 6 + [1808]),
    ],
    ids=lambda value: str(value) if not isinstance(value, list) else "",
)
def test_rule_of_the_cut(max_file_bytes: int | None, payloads: list[int]) -> None:
    """Slices are the largest multiples of 4096 that the limit leaves; the last file takes the rest."""
    plan = plan_artifact(golden_contents(), "golden.ninfer", max_file_bytes)
    assert [record.payload_bytes for record in plan.directory.files] == payloads
    assert list(plan.file_bytes) == [4096 + payload for payload in payloads]
    names = [f"golden.ninfer.part-{i:04d}" for i in range(1, len(payloads))]
    assert [record.name for record in plan.directory.files] == [None, *names]


def test_limit_that_leaves_no_room() -> None:
    with pytest.raises(InputError) as caught:
        plan_artifact(golden_contents(), "golden.ninfer", 8191)
    assert str(caught.value) == (
        "golden.ninfer: 8191 bytes per file leave no room for weights: 4096 bytes go before those in the entry file; "
        "at least 8192 are needed"
    )


def test_list_of_files_that_makes_the_directory_longer() -> None:
    """Hundreds of files need some 50 bytes of JSON each, so that the payload starts later than for one file."""
    contents = Contents((tensor_object("w", (1 << 24,), "fp32"),), {"text": Component({})}, {})
    assert plan_artifact(contents, "w.ninfer").payload_start == 4096
    plan = plan_artifact(contents, "w.ninfer", 1 << 17)
    assert len(plan.directory.files) == 1 + -(-((1 << 26) - 102_400) // 126_976) == 529
    text = plan.json.rstrip()
    assert len(json.loads(text)["files"]) == 529
    assert plan.payload_start == -(-(32 + len(text)) // 4096) * 4096 == 28_672
    assert sum(record.payload_bytes for record in plan.directory.files) == 1 << 26
    assert {*plan.file_bytes[:-1]} == {1 << 17}


def test_directory_is_read_without_the_parts(path: Path) -> None:
    for index in range(1, 7):
        part(path, index).unlink()
    artifact = Artifact.open(path)
    assert len(artifact.objects) == 11
    assert artifact.matrix("t/q5_g64_fp16").rows == 5  # wholly in the entry file
    with pytest.raises(InputError) as caught:
        artifact.matrix("t/nvfp4")
    assert str(caught.value) == f"{part(path, 1)}: part 1 of {path} cannot be read: No such file or directory"


def test_renamed_entry_file(path: Path) -> None:
    renamed = path.rename(path.with_name("other.ninfer"))
    assert Artifact.open(renamed).matrix("t/fp8").planes["scales"].array().tolist() == [0x3F80, 0x3F90, 0x3FA0]


def test_linked_entry_file_finds_its_parts(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "links"
    elsewhere.mkdir()
    link = elsewhere / "model.ninfer"
    link.symlink_to(path)
    assert Artifact.open(link).matrix("t/fp8").planes["scales"].array().tolist() == [0x3F80, 0x3F90, 0x3FA0]


def test_parts_beside_a_link_come_first(path: Path, tmp_path: Path) -> None:
    """A download cache links every file of a model by its name to a store of nameless ones."""
    store, snapshot = tmp_path / "store", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    for index, file in enumerate(sorted(path.parent.glob("golden*"))):
        shutil.move(file, store / str(index))
        (snapshot / file.name).symlink_to(store / str(index))
    artifact = Artifact.open(snapshot / "golden.ninfer")
    assert artifact.resource(TOKENIZER) == b'{"model":{}}\n'
    assert artifact.matrix("t/fp8").planes["scales"].array().tolist() == [0x3F80, 0x3F90, 0x3FA0]


OTHER_ID = "ff" * 16
OWN_ID = golden.ARTIFACT_ID.hex()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(
            lambda raw: raw[:20], "is 20 bytes long, shorter than the header of 32 bytes", id="shorter than its header"
        ),
        pytest.param(
            lambda raw: b"NINFER\0\3" + raw[8:],
            "starts with 4e 49 4e 46 45 52 00 03; a continuation starts with 4e 49 4e 50 52 54 00 03",
            id="an entry file",
        ),
        pytest.param(
            lambda raw: raw[:8] + (3).to_bytes(8, "little") + raw[16:],
            "is part 3, expected part 2 of {entry}",
            id="another index",
        ),
        pytest.param(
            lambda raw: raw[:16] + b"\xff" * 16 + raw[32:],
            f"belongs to another artifact: id {OTHER_ID}, expected {OWN_ID} of {{entry}}",
            id="another artifact",
        ),
        pytest.param(
            lambda raw: raw[:-1], "is 8191 bytes long, expected 8192 (truncated download?)", id="one byte short"
        ),
        pytest.param(
            lambda raw: raw + b"\0", "is 8193 bytes long, expected 8192 (truncated download?)", id="one byte long"
        ),
    ],
)
def test_damaged_part(path: Path, content: object, problem: str) -> None:
    assert callable(content)
    wrong = part(path, 2)
    wrong.write_bytes(content(wrong.read_bytes()))
    artifact = Artifact.open(path)
    assert artifact.resource(TOKENIZER) == b'{"model":{}}\n'
    with pytest.raises(InputError) as caught:
        artifact.matrix("t/nvfp4")
    assert str(caught.value) == f"{wrong}: {problem.format(entry=path)}"


def test_directory_in_place_of_a_part(path: Path) -> None:
    wrong = part(path, 2)
    wrong.unlink()
    wrong.mkdir()
    with pytest.raises(InputError) as caught:
        Artifact.open(path).matrix("t/nvfp4")
    assert str(caught.value) == f"{wrong}: part 2 of {path} cannot be read: not a regular file but a directory"
