"""Artifacts are written to the byte, and whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Binding, BindingPart, Component, Proposal, Use
from ninferd.weights.artifact.plan import Contents, plan_artifact, resource_object, tensor_object
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.writer import ArtifactWriter, Chunk
from tests.weights.artifact import golden
from tests.weights.artifact.support import TOKENIZER, golden_contents, write_golden

SMALL = Contents(
    (resource_object("r", 3), tensor_object("w", (2, 4), "bf16"), tensor_object("v", (2, 130), "fp8_e4m3fn_row_bf16")),
    {"text": Component({})},
    {},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model.ninfer"


@pytest.fixture(autouse=True)
def _directory(path: Path) -> None:
    path.parent.mkdir()


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def put_small(writer: ArtifactWriter) -> None:
    writer.put("r", [b"abc"])
    writer.put("w", [bytes(16)])
    writer.put("v", [bytes(516)])


class TestContent:
    def test_golden_file_to_the_byte(self, path: Path) -> None:
        write_golden(path)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == golden.SHA256
        assert names(path) == ["model.ninfer"]

    def test_sizes_are_known_without_writing(self, path: Path) -> None:
        plan = plan_artifact(golden_contents(), path.name)
        assert (plan.file_bytes, plan.total_bytes, plan.payload_start) == ((30_480,), 30_480, 4096)
        assert names(path) == []

    def test_order_of_writing_does_not_matter(self, path: Path) -> None:
        with ArtifactWriter(path, golden_contents(), artifact_id=golden.ARTIFACT_ID) as writer:
            for name, content in reversed(golden.object_bytes().items()):
                writer.put(name, [content])
            writer.publish()
        assert hashlib.sha256(path.read_bytes()).hexdigest() == golden.SHA256

    def test_planes_side_by_side(self, path: Path) -> None:
        """As a converter does it: a few rows of every plane at a time."""
        content = golden.object_bytes()
        with ArtifactWriter(path, golden_contents(), artifact_id=golden.ARTIFACT_ID, max_file_bytes=8192) as writer:
            q6 = writer.planes("t/q6_g64_fp16")
            raw = content.pop("t/q6_g64_fp16")
            for row in range(5):
                q6.write("codes", raw[row * 128 : row * 128 + 128])
                q6.write("high", raw[768 + row * 64 : 768 + row * 64 + 64])
                q6.write("scales", np.frombuffer(raw, "<f2")[640 + row * 4 : 640 + row * 4 + 4])
            q6.close()
            for name, each in content.items():
                writer.put(name, [each])
            writer.publish()
        payload = b"".join((path.parent / name).read_bytes()[4096:] for name in names(path))
        assert payload == golden.golden_file()[4096:]

    @pytest.mark.parametrize(
        "chunk",
        [
            np.arange(8, dtype="<u2").reshape(2, 4),
            np.array([[0, 1, 2, 3], [4, 5, 6, 7]], "<u2", order="F"),
            np.arange(8, dtype="<u2").view("<f2"),
            memoryview(np.arange(8, dtype="<u2").tobytes()),
            bytearray(np.arange(8, dtype="<u2").tobytes()),
        ],
        ids=["array", "array in Fortran order", "float16", "memoryview", "bytearray"],
    )
    def test_kinds_of_chunks(self, path: Path, chunk: Chunk) -> None:
        with ArtifactWriter(path, SMALL) as writer:
            writer.put("r", [b"a", b"", b"bc"])
            writer.put("w", [chunk, b""])
            writer.put("v", [bytes(516)])
            writer.publish()
        values = Artifact.open(path).matrix("w").planes["values"].array()
        assert values.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_everything_of_a_directory_comes_back(self, path: Path) -> None:
        contents = Contents(
            (
                resource_object("r", 3),
                tensor_object("w", (256, 64), "nvfp4", divisors=2),
                tensor_object("d", (), "fp32"),
            ),
            {
                "text": Component(
                    {"eps": 1e-6, "name": "größe"}, resources={"a": "r"}, proposal=Proposal("indexed", 7)
                ),
                "mtp": Component({}, target="text"),
            },
            {"p": Binding((BindingPart("w", 64, 128), BindingPart("w", 0, 64)))},
            (Use("p", "x"), Use("p", "y", "A16Only", {"role": Binding((BindingPart("d", 0, 1),), is_whole=True)})),
            {"name": "n"},
            {"recipe": "r"},
        )
        with ArtifactWriter(path, contents) as writer:
            writer.put("r", [b"abc"])
            writer.put("w", [bytes(256 * 36), np.array([1, 2], "<f4")])
            writer.put("d", [np.float32(3).tobytes()])
            writer.publish()
        artifact = Artifact.open(path)
        assert dict(artifact.components) == contents.components
        assert dict(artifact.bindings) == contents.bindings
        assert artifact.uses == contents.uses
        assert (artifact.metadata, artifact.provenance) == (contents.metadata, contents.provenance)
        assert artifact.tensor("w").divisors == 2
        assert artifact.matrix("w").divisors == (1.0, 2.0)
        assert "größe".encode() in path.read_bytes()[:4096]

    def test_two_artifacts_have_two_ids(self, path: Path) -> None:
        ids = set()
        for name in ("a", "b"):
            with ArtifactWriter(path.with_name(name), SMALL) as writer:
                put_small(writer)
                writer.publish()
            ids.add(Artifact.open(path.with_name(name)).artifact_id)
        assert len(ids) == 2

    def test_mode_follows_the_umask(self, path: Path) -> None:
        old = os.umask(0o027)
        try:
            write_golden(path)
        finally:
            os.umask(old)
        assert path.stat().st_mode & 0o777 == 0o640


def short(writer: ArtifactWriter) -> None:
    writer.put("w", [bytes(8), bytes(7)])


def long(writer: ArtifactWriter) -> None:
    writer.put("w", [bytes(16), b"x"])


def twice(writer: ArtifactWriter) -> None:
    writer.put("r", [b"abc"])
    writer.put("r", [b"abc"])


def unknown(writer: ArtifactWriter) -> None:
    writer.put("z", [b""])


def missing(writer: ArtifactWriter) -> None:
    writer.put("w", [bytes(16)])
    writer.publish()


def plane_short(writer: ArtifactWriter) -> None:
    planes = writer.planes("v")
    planes.write("codes", bytes(260))
    planes.write("scales", bytes(2))
    planes.close()


def plane_long(writer: ArtifactWriter) -> None:
    writer.planes("v").write("scales", bytes(6))


def planes_of_a_resource(writer: ArtifactWriter) -> None:
    writer.planes("r")


class TestMistakes:
    @pytest.mark.parametrize(
        ("mistake", "problem"),
        [
            (short, "object w: got 15 bytes, the directory says 16"),
            (long, "object w: got 17 bytes, the directory says 16"),
            (twice, "object r is written twice"),
            (unknown, "object z is not one of this artifact"),
            (missing, "2 objects were not written: r, v"),
            (plane_short, "object v, plane scales: got 2 bytes, the directory says 4"),
            (plane_long, "object v, plane scales: got 6 bytes, the directory says 4"),
            (planes_of_a_resource, "object r is a resource and has no planes"),
        ],
        ids=lambda value: value.__name__ if callable(value) else "",
    )
    def test_nothing_is_left(self, path: Path, mistake: Callable[[ArtifactWriter], None], problem: str) -> None:
        with pytest.raises(InputError) as caught, ArtifactWriter(path, SMALL) as writer:
            mistake(writer)
        assert str(caught.value) == f"{path}: {problem}"
        assert names(path) == []

    def test_interrupted(self, path: Path) -> None:
        def interrupted() -> Iterator[bytes]:
            yield bytes(30)
            assert len(names(path)) == 7
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), ArtifactWriter(path, golden_contents(), max_file_bytes=8192) as writer:
            writer.put("t/bf16", interrupted())
        assert names(path) == []

    def test_not_published(self, path: Path) -> None:
        with ArtifactWriter(path, SMALL) as writer:
            put_small(writer)
        assert names(path) == []

    @pytest.mark.parametrize(
        ("contents", "problem"),
        [
            (
                Contents((), {"text": Component({})}, {}),
                "model.ninfer: files[0]: payload_bytes must be an integer of 1",
            ),
            (Contents((resource_object("r", 1),) * 2, {"text": Component({})}, {}), "object r is listed twice"),
            (
                Contents((resource_object("r", 1),), {"text": Component({"eps": math.nan})}, {}),
                "the directory cannot be written as JSON: Out of range float values are not JSON compliant",
            ),
            (
                Contents(
                    (resource_object("r", 1),), {"text": Component({})}, {"p": Binding((BindingPart("r", 0, 1),))}
                ),
                "model.ninfer: binding p: parts[0]: object r is a resource, not a tensor",
            ),
        ],
        ids=["no objects", "duplicate id", "NaN in a config", "binding of a resource"],
    )
    def test_contents_that_a_reader_would_refuse(self, path: Path, contents: Contents, problem: str) -> None:
        with pytest.raises(InputError) as caught:
            ArtifactWriter(path, contents)
        assert str(caught.value).startswith(problem)
        assert names(path) == []


class TestOtherFiles:
    @pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
    def test_entry_file_appears_last(self, path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
        """A reader that finds it finds all its parts."""
        appeared: list[str] = []
        for function in ("hardlink_to", "replace"):
            move = getattr(Path, function)

            def record(first: Path, second: Path, move: Callable[[Path, Path], object] = move) -> None:
                move(first, second)
                appeared.extend(name for name in names(path) if not name.startswith(".") and name not in appeared)

            monkeypatch.setattr(Path, function, record)
        write_golden(path, max_file_bytes=16_384, overwrite=overwrite)
        assert appeared == ["model.ninfer.part-0001", "model.ninfer.part-0002", "model.ninfer"]

    def test_existing_entry_file_is_kept(self, path: Path) -> None:
        path.write_text("mine")
        with pytest.raises(InputError) as caught:
            write_golden(path)
        assert str(caught.value) == f"{path}: exists already; it is not overwritten"
        assert (names(path), path.read_text()) == (["model.ninfer"], "mine")

    def test_existing_part_is_kept(self, path: Path) -> None:
        part = path.with_name("model.ninfer.part-0004")
        part.write_text("mine")
        with pytest.raises(InputError) as caught:
            write_golden(path, max_file_bytes=8192)
        assert str(caught.value) == f"{part}: exists already; it is not overwritten"
        assert (names(path), part.read_text()) == ([part.name], "mine")

    @pytest.mark.parametrize("late", ["model.ninfer", "model.ninfer.part-0003"], ids=["entry", "part"])
    def test_file_that_appears_while_writing_is_kept(self, path: Path, late: str) -> None:
        with ArtifactWriter(path, golden_contents(), max_file_bytes=8192) as writer:
            for name, content in golden.object_bytes().items():
                writer.put(name, [content])
            path.with_name(late).write_text("mine")
            with pytest.raises(InputError) as caught:
                writer.publish()
        assert str(caught.value) == f"{path.with_name(late)}: exists already; it is not overwritten"
        assert (names(path), path.with_name(late).read_text()) == ([late], "mine")

    def test_parts_of_a_replaced_artifact_go(self, path: Path) -> None:
        write_golden(path, max_file_bytes=8192)
        parts = [name for name in names(path) if ".part-" in name]
        assert len(parts) > 3
        foreign = bytearray((path.parent / parts[-1]).read_bytes())
        foreign[16] ^= 1  # in the artifact id
        (path.parent / parts[-1]).write_bytes(foreign)
        (path.parent / "model.ninfer.part-0099").write_bytes((path.parent / parts[1]).read_bytes())  # not listed
        write_golden(path, max_file_bytes=16_384, overwrite=True)
        count = len(Artifact.open(path).files) - 1
        assert 0 < count < len(parts) - 1
        assert names(path) == sorted(["model.ninfer", *parts[:count], parts[-1], "model.ninfer.part-0099"])
        write_golden(path, overwrite=True)
        assert names(path) == ["model.ninfer", parts[-1], "model.ninfer.part-0099"]

    def test_parts_behind_a_replaced_link_stay(self, path: Path) -> None:
        elsewhere = path.parent / "elsewhere" / path.name
        elsewhere.parent.mkdir()
        write_golden(elsewhere, max_file_bytes=8192)
        before = names(elsewhere)
        path.symlink_to(elsewhere)
        for name in before[1:]:
            (path.parent / name).symlink_to(elsewhere.with_name(name))
        write_golden(path, overwrite=True)
        assert names(elsewhere) == before
        assert names(path) == sorted(["elsewhere", *before])

    def test_whatever_is_replaced_need_not_be_an_artifact(self, path: Path) -> None:
        path.write_bytes(b"something")
        write_golden(path, overwrite=True)
        assert names(path) == ["model.ninfer"]

    def test_overwrite(self, path: Path) -> None:
        path.write_text("old")
        write_golden(path, overwrite=True)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == golden.SHA256
        assert names(path) == ["model.ninfer"]

    def test_failure_keeps_what_would_have_been_overwritten(self, path: Path) -> None:
        path.write_text("old")
        with pytest.raises(InputError), ArtifactWriter(path, SMALL, overwrite=True) as writer:
            short(writer)
        assert (names(path), path.read_text()) == (["model.ninfer"], "old")

    def test_leftovers_of_a_killed_writer_are_taken_away(self, path: Path) -> None:
        for name in (".model.ninfer.partial", ".model.ninfer.part-0001.partial", ".model.ninfer.part-0900.partial"):
            path.with_name(name).write_text("left")
        write_golden(path, max_file_bytes=16_384)
        assert names(path) == ["model.ninfer", "model.ninfer.part-0001", "model.ninfer.part-0002"]

    def test_leftover_that_is_a_second_name_of_a_published_file(self, path: Path) -> None:
        """A writer that is killed between its last two steps leaves it."""
        write_golden(path)
        other = path.with_name("copy.ninfer")
        path.rename(other)
        os.link(other, path.with_name(".model.ninfer.partial"))
        with ArtifactWriter(path, SMALL) as writer:
            put_small(writer)
            writer.publish()
        assert hashlib.sha256(other.read_bytes()).hexdigest() == golden.SHA256

    def test_second_writer_of_the_same_artifact_is_refused(self, path: Path) -> None:
        with ArtifactWriter(path, SMALL) as writer:
            with pytest.raises(InputError) as caught:
                write_golden(path)
            assert str(caught.value) == f"{path}: is being written by another process"
            put_small(writer)
            writer.publish()
        assert Artifact.open(path).resource("r") == b"abc"
        assert names(path) == ["model.ninfer"]


class TestFailingDisk:
    def test_too_little_space_is_said_before_writing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage(path.parent)._replace(free=30_479)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(InputError) as caught:
            write_golden(path)
        assert str(caught.value) == f"{path}: needs 30480 bytes, {path.parent} has 30479 free"
        assert names(path) == []

    @pytest.mark.parametrize("function", ["pwrite", "ftruncate", "fsync"])
    def test_error_of_the_disk(self, path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, function, fail)
        with pytest.raises(InputError) as caught:
            write_golden(path)
        action = "published" if function == "fsync" else "written"
        assert str(caught.value) == f"{path}: cannot be {action}: No space left on device"
        assert names(path) == []

    def test_short_writes_are_continued(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:1000], offset))
        write_golden(path)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == golden.SHA256

    def test_file_system_without_hard_links(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(Path, "hardlink_to", refuse)
        write_golden(path, max_file_bytes=16_384)
        assert names(path) == ["model.ninfer", "model.ninfer.part-0001", "model.ninfer.part-0002"]
        assert Artifact.open(path).resource(TOKENIZER) == b'{"model":{}}\n'

    def test_file_system_without_locks(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(InputError) as caught:
            write_golden(path)
        assert str(caught.value) == f"{path}: cannot be written: No locks available"
        assert names(path) == []

    def test_directory_that_does_not_exist(self, tmp_path: Path) -> None:
        path = tmp_path / "nowhere" / "model.ninfer"
        with pytest.raises(InputError) as caught:
            write_golden(path)
        assert str(caught.value) == f"{path}: cannot be written: No such file or directory"
