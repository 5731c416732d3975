"""From offsets in the logical payload to bytes of files."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.directory import FileRecord
from ninferd.weights.artifact.framing import HEADER_BYTES, PART_MAGIC, PART_PAYLOAD_START, Header
from ninferd.weights.stored import FileIdentity, FileSpan, file_identity


@dataclass(frozen=True)
class PayloadFile:
    """One checked file of an artifact and where its share of the payload starts."""

    path: Path
    start: int
    identity: FileIdentity


class Payload:
    """The concatenated payload regions of an artifact's files. Continuations are checked when they are first needed."""

    def __init__(self, entry: PayloadFile, artifact_id: bytes, files: Sequence[FileRecord]) -> None:
        self._artifact_id = artifact_id
        self._records = files
        self._begins = [0, *accumulate(record.payload_bytes for record in files)]
        self._files: dict[int, PayloadFile] = {0: entry}
        self._entry_path = entry.path

    def spans(self, offset: int, size_bytes: int) -> tuple[FileSpan, ...]:
        """Where ``size_bytes`` from a logical ``offset`` lie, which must be inside the payload.

        Raises InputError naming the file if a continuation is missing or is not that of this artifact, and if a file
        was replaced since it was first checked.
        """
        spans = []
        index = bisect_right(self._begins, offset) - 1
        end = offset + size_bytes
        while offset < end:
            file = self.file(index)
            last = min(end, self._begins[index + 1])
            spans.append(FileSpan(file.path, file.start + offset - self._begins[index], last - offset))
            offset, index = last, index + 1
        return tuple(spans)

    def file(self, index: int) -> PayloadFile:
        """The checked file ``index``; errors as ``spans``."""
        known = self._files.get(index)
        if known is None:
            known = self._files[index] = self._open_part(index)
            return known
        try:
            now = file_identity(known.path.stat())
        except OSError as error:
            raise InputError(f"{known.path}: cannot be read: {error.strerror}") from error
        if now != known.identity:
            raise InputError(f"{known.path}: was changed or replaced after it was opened; open it again")
        return known

    def part_path(self, index: int) -> Path:
        """Where the continuation ``index`` is: beside the entry file, or beside the file that the entry links to."""
        name = str(self._records[index].name)
        beside = self._entry_path.with_name(name)
        if self._entry_path.is_symlink() and not beside.exists():
            return Path(os.path.realpath(self._entry_path)).with_name(name)
        return beside

    def part_bytes(self, index: int) -> int:
        """Size that the continuation ``index`` must have."""
        return PART_PAYLOAD_START + self._records[index].payload_bytes

    def _open_part(self, index: int) -> PayloadFile:
        path = self.part_path(index)
        try:
            descriptor = open_regular(path)
        except OSError as error:
            raise InputError(f"{path}: part {index} of {self._entry_path} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            raise InputError(f"{path}: is {len(raw)} bytes long, shorter than the header of {HEADER_BYTES} bytes")
        header = Header.unpacked(raw)
        if header.magic != PART_MAGIC:
            raise InputError(
                f"{path}: starts with {header.magic.hex(' ')}; a continuation starts with {PART_MAGIC.hex(' ')}"
            )
        if header.number != index:
            raise InputError(f"{path}: is part {header.number}, expected part {index} of {self._entry_path}")
        if header.artifact_id != self._artifact_id:
            raise InputError(
                f"{path}: belongs to another artifact: id {header.artifact_id.hex()}, expected "
                f"{self._artifact_id.hex()} of {self._entry_path}"
            )
        expected = self.part_bytes(index)
        if status.st_size != expected:
            raise InputError(f"{path}: is {status.st_size} bytes long, expected {expected} (truncated download?)")
        return PayloadFile(path, PART_PAYLOAD_START, file_identity(status))
