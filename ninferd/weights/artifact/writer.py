"""Writing an artifact object by object, in any order, so that it exists whole or not at all."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import StoredObject, TensorObject
from ninferd.weights.artifact.framing import (
    ARTIFACT_ID_BYTES,
    ENTRY_MAGIC,
    HEADER_BYTES,
    PART_MAGIC,
    PART_PAYLOAD_START,
    Header,
)
from ninferd.weights.artifact.plan import Contents, Plan, plan_artifact
from ninferd.weights.artifact.publish import Unpublished
from ninferd.weights.artifact.replaced import continuations, remove_continuations
from ninferd.weights.formats.registry import PlaneSpec, plane_layout

Chunk = bytes | bytearray | memoryview | NDArray[Any]
"""Bytes, or an array whose values are little-endian, in C order."""


class ArtifactWriter:
    """A context that leaves the artifact at ``path`` after ``publish``, and otherwise nothing.

    Objects are written with ``put`` or, plane by plane and interleaved, through ``planes``. Every method raises
    InputError naming file and object.
    """

    def __init__(
        self,
        path: Path,
        contents: Contents,
        *,
        artifact_id: bytes | None = None,
        max_file_bytes: int | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = path
        self.plan: Plan = plan_artifact(contents, path.name, max_file_bytes)
        self.artifact_id = uuid.uuid4().bytes if artifact_id is None else artifact_id
        if len(self.artifact_id) != ARTIFACT_ID_BYTES:
            raise ValueError(f"artifact_id has {len(self.artifact_id)} bytes, not {ARTIFACT_ID_BYTES}")
        records = self.plan.directory.files
        self._begins = [0, *accumulate(record.payload_bytes for record in records)]
        self._starts = [self.plan.payload_start, *(PART_PAYLOAD_START for _ in records[1:])]
        self._unwritten = dict(self.plan.directory.objects)
        self._paths = [path, *(path.with_name(str(record.name)) for record in records[1:])]
        self._files = Unpublished(self._paths, self.plan.file_bytes, overwrite=overwrite)

    def __enter__(self) -> ArtifactWriter:
        try:
            self._files.create()
            self._write_headers()
        except BaseException:
            self._files.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._files.discard()

    def put(self, object_id: str, chunks: Iterable[Chunk]) -> None:
        """Write a whole object from consecutive chunks."""
        entry = self._take(object_id)
        sink = Sink(self, entry.id, entry.offset, entry.size_bytes)
        for chunk in chunks:
            sink.write(chunk)
        sink.require_full()

    def planes(self, object_id: str) -> PlaneWriter:
        """Write a tensor plane by plane, each from its start to its end; call ``close`` when all are full."""
        entry = self._take(object_id)
        if not isinstance(entry, TensorObject):
            raise InputError(f"{self.path}: object {object_id} is a resource and has no planes")
        return PlaneWriter(self, entry, plane_layout(entry.format, entry.shape, entry.divisors))

    def publish(self) -> None:
        """Make the artifact appear: continuations first, the entry file last. InputError if an object is missing.

        Continuations of a replaced artifact that the new one has no use for are removed.
        """
        if self._unwritten:
            names = ", ".join(list(self._unwritten)[:3])
            raise InputError(f"{self.path}: {len(self._unwritten)} objects were not written: {names}")
        replaced = continuations(self.path)
        self._files.publish()
        remove_continuations(replaced, self._paths)

    def write_at(self, offset: int, data: memoryview) -> None:
        """Put bytes at a logical payload offset (used by the sinks, which check bounds)."""
        index = bisect_right(self._begins, offset) - 1
        while data:
            room = self._begins[index + 1] - offset
            piece = data[:room]
            self._files.write(index, self._starts[index] + offset - self._begins[index], piece)
            data, offset, index = data[room:], offset + len(piece), index + 1

    def _take(self, object_id: str) -> StoredObject:
        entry = self._unwritten.pop(object_id, None)
        if entry is None:
            known = object_id in self.plan.directory.objects
            raise InputError(
                f"{self.path}: object {object_id} {'is written twice' if known else 'is not one of this artifact'}"
            )
        return entry

    def _write_headers(self) -> None:
        header = Header(ENTRY_MAGIC, len(self.plan.json), self.artifact_id).packed()
        self._files.write(0, 0, memoryview(header))
        self._files.write(0, HEADER_BYTES, memoryview(self.plan.json))
        for index in range(1, len(self.plan.directory.files)):
            self._files.write(index, 0, memoryview(Header(PART_MAGIC, index, self.artifact_id).packed()))


class Sink:
    """A run of the payload that is filled from its start to its end."""

    def __init__(self, writer: ArtifactWriter, name: str, offset: int, size_bytes: int) -> None:
        self._writer = writer
        self._name = name
        self._offset = offset
        self._size_bytes = size_bytes
        self._written_bytes = 0

    def write(self, chunk: Chunk) -> None:
        """Append bytes; InputError if they are more than the directory promises."""
        raw = np.ascontiguousarray(chunk) if isinstance(chunk, np.ndarray) else np.frombuffer(chunk, np.uint8)
        data = raw.reshape(-1).view(np.uint8).data
        if self._written_bytes + len(data) > self._size_bytes:
            raise self._wrong_size(self._written_bytes + len(data))
        self._writer.write_at(self._offset + self._written_bytes, data)
        self._written_bytes += len(data)

    def require_full(self) -> None:
        """InputError if bytes are missing."""
        if self._written_bytes < self._size_bytes:
            raise self._wrong_size(self._written_bytes)

    def _wrong_size(self, found: int) -> InputError:
        return InputError(
            f"{self._writer.path}: object {self._name}: got {found} bytes, the directory says {self._size_bytes}"
        )


class PlaneWriter:
    """The planes of one tensor, written side by side; what lies between them stays zero."""

    def __init__(self, writer: ArtifactWriter, tensor: TensorObject, specs: tuple[PlaneSpec, ...]) -> None:
        self._sinks = {
            spec.name: Sink(writer, f"{tensor.id}, plane {spec.name}", tensor.offset + spec.offset, spec.size_bytes)
            for spec in specs
        }

    def write(self, plane: str, chunk: Chunk) -> None:
        """Append bytes to a plane."""
        self._sinks[plane].write(chunk)

    def close(self) -> None:
        """InputError if a plane is not full."""
        for sink in self._sinks.values():
            sink.require_full()
