"""Placing objects and cutting the payload into files, before a byte is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import (
    RAW_BYTES,
    Binding,
    Component,
    Directory,
    FileRecord,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninferd.weights.artifact.encode import encode_directory
from ninferd.weights.artifact.framing import (
    FILE_ALIGNMENT,
    HEADER_BYTES,
    MAX_JSON_BYTES,
    PART_PAYLOAD_START,
    TENSOR_ALIGNMENT,
    align_up,
)
from ninferd.weights.artifact.schema import parse_directory
from ninferd.weights.artifact.strict_json import parse_strict
from ninferd.weights.formats.registry import LAYOUT_OF, encoded_bytes


def tensor_object(object_id: str, shape: tuple[int, ...], format: str, divisors: int = 1) -> TensorObject:
    """The record of a tensor that is to be written; InputError if the format cannot have this shape."""
    size_bytes = encoded_bytes(format, shape, divisors)
    return TensorObject(object_id, shape, format, LAYOUT_OF[format], 0, size_bytes, divisors)


def resource_object(object_id: str, size_bytes: int) -> ResourceObject:
    """The record of a resource that is to be written."""
    return ResourceObject(object_id, RAW_BYTES, 0, size_bytes)


@dataclass(frozen=True)
class Contents:
    """What an artifact shall hold. Offsets of the objects are assigned when it is planned; their order is kept."""

    objects: tuple[StoredObject, ...]
    components: Mapping[str, Component]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The files of an artifact to the byte; nothing of the payload is needed to know them."""

    directory: Directory
    json: bytes  # padded with spaces, so that the payload follows it at once

    @property
    def payload_start(self) -> int:
        return HEADER_BYTES + len(self.json)

    @property
    def file_bytes(self) -> tuple[int, ...]:
        """Size of the entry file and of each continuation."""
        entry, *parts = (record.payload_bytes for record in self.directory.files)
        return (self.payload_start + entry, *(PART_PAYLOAD_START + size for size in parts))

    @property
    def total_bytes(self) -> int:
        return sum(self.file_bytes)


def plan_artifact(contents: Contents, entry_name: str, max_file_bytes: int | None = None) -> Plan:
    """Offsets, directory and file sizes of an artifact whose entry file will be called ``entry_name``.

    A payload that does not fit ``max_file_bytes`` continues in ``ENTRY_NAME.part-0001`` and so on. Raises InputError
    if the limit leaves no room, and for whatever a reader would refuse.
    """
    objects = _placed(contents.objects)
    last = next(reversed(objects.values()), None)
    payload_bytes = last.offset + last.size_bytes if last else 0
    directory = Directory(
        components=contents.components,
        objects=objects,
        bindings=contents.bindings,
        uses=contents.uses,
        files=(FileRecord(None, payload_bytes),),
        metadata=contents.metadata,
        provenance=contents.provenance,
    )
    text = _encoded(directory)
    start = align_up(HEADER_BYTES + len(text), FILE_ALIGNMENT)
    while True:
        directory = replace(directory, files=_cut(payload_bytes, start, entry_name, max_file_bytes))
        text = _encoded(directory)
        if HEADER_BYTES + len(text) <= start:
            break
        start += FILE_ALIGNMENT  # the list of files has made the directory longer
    if start - HEADER_BYTES > MAX_JSON_BYTES:
        raise InputError(f"{entry_name}: the directory would have {len(text)} bytes; at most {MAX_JSON_BYTES} are read")
    parse_directory(entry_name, parse_strict(text))
    return Plan(directory, text.ljust(start - HEADER_BYTES))


def _placed(objects: Iterable[StoredObject]) -> dict[str, StoredObject]:
    placed: dict[str, StoredObject] = {}
    offset = 0
    for entry in objects:
        if entry.id in placed:
            raise InputError(f"object {entry.id} is listed twice")
        if isinstance(entry, TensorObject):
            offset = align_up(offset, TENSOR_ALIGNMENT)
        placed[entry.id] = replace(entry, offset=offset)
        offset += entry.size_bytes
    return placed


def _encoded(directory: Directory) -> bytes:
    try:
        return encode_directory(directory)
    except (TypeError, ValueError) as error:
        raise InputError(f"the directory cannot be written as JSON: {error}") from error


def _cut(payload_bytes: int, start: int, entry_name: str, max_file_bytes: int | None) -> tuple[FileRecord, ...]:
    if max_file_bytes is None or start + payload_bytes <= max_file_bytes:
        return (FileRecord(None, payload_bytes),)
    entry_room, part_room = (
        (max_file_bytes - taken) // FILE_ALIGNMENT * FILE_ALIGNMENT for taken in (start, PART_PAYLOAD_START)
    )
    if entry_room <= 0 or part_room <= 0:
        raise InputError(
            f"{entry_name}: {max_file_bytes} bytes per file leave no room for weights: {start} bytes go before those "
            f"in the entry file; at least {max(start, PART_PAYLOAD_START) + FILE_ALIGNMENT} are needed"
        )
    records = [FileRecord(None, entry_room)]
    rest = payload_bytes - entry_room
    while rest > 0:
        records.append(FileRecord(f"{entry_name}.part-{len(records):04d}", min(rest, part_room)))
        rest -= part_room
    return tuple(records)
