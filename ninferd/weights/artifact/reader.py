"""Opening an artifact and finding its objects. Nothing but the directory is read before a value is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, BinaryIO

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.directory import (
    RAW_BYTES,
    Binding,
    Component,
    FileRecord,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninferd.weights.artifact.framing import (
    ENTRY_MAGIC,
    FILE_ALIGNMENT,
    HEADER_BYTES,
    MAGIC_PREFIX,
    MAX_JSON_BYTES,
    OLD_HEADER_BYTES,
    TENSOR_ALIGNMENT,
    Header,
    align_up,
    magic_problem,
)
from ninferd.weights.artifact.older import parse_old_directory
from ninferd.weights.artifact.payload import Payload, PayloadFile
from ninferd.weights.artifact.schema import parse_directory
from ninferd.weights.artifact.strict_json import StrictJsonError, parse_strict
from ninferd.weights.artifact.text import plain
from ninferd.weights.formats.registry import NVFP4, PlaneSpec, plane_layout, require_pair
from ninferd.weights.stored import Plane, StoredMatrix, file_identity, read_spans

MAX_RESOURCE_BYTES = 256 << 20


@dataclass(frozen=True)
class Artifact:
    """An open artifact. Versions 1 and 2 have objects, ``model_id`` and ``weights_id`` only."""

    path: Path
    version: int
    artifact_id: bytes | None  # 16 bytes that all files of a version 3 artifact share
    payload_start: int  # in the entry file
    entry_bytes: int  # size of the entry file
    components: Mapping[str, Component]
    objects: Mapping[str, StoredObject]  # by id, in payload order
    bindings: Mapping[str, Binding]  # by parameter
    uses: tuple[Use, ...]
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]
    model_id: str | None
    weights_id: str | None
    payload: Payload

    @classmethod
    def open(cls, path: Path) -> Artifact:
        """Read and check the directory of the artifact whose entry file is ``path``. InputError says what is wrong."""
        try:
            descriptor = open_regular(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
        try:
            with os.fdopen(descriptor, "rb") as file:
                return _open(path, file)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error

    @property
    def payload_bytes(self) -> int:
        """Size of the logical payload."""
        return sum(file.payload_bytes for file in self.files)

    def tensor(self, object_id: str) -> TensorObject:
        """The record of a tensor; InputError if there is none."""
        found = self.objects.get(object_id)
        if not isinstance(found, TensorObject):
            reason = "does not exist" if found is None else "is a resource, not a tensor"
            raise InputError(f"{self.path}: object {plain(object_id)} {reason}")
        return found

    def matrix(self, object_id: str) -> StoredMatrix:
        """A tensor as a matrix: leading dimensions become rows, one of rank 1 becomes a row, a scalar ``[1, 1]``.

        Raises InputError if format, layout, shape, size and offset do not go together, or if the bytes are not there.
        """
        tensor = self.tensor(object_id)
        planes = {spec.name: self._plane(tensor, spec) for spec in self.planes(tensor)}
        columns = tensor.shape[-1] if tensor.shape else 1
        rows = prod(tensor.shape[:-1])
        divisors: tuple[float, ...] = ()
        if tensor.format == NVFP4:
            divisors = self._divisors(tensor, planes.pop("divisors"))
        elif "values" in planes:
            values = planes["values"]
            planes["values"] = Plane(values.dtype, (rows, columns), values.spans)
        return StoredMatrix(
            name=plain(tensor.id),
            path=self.path,
            format=tensor.format,
            rows=rows,
            columns=columns,
            planes=planes,
            divisors=divisors,
            is_swizzled=tensor.format == NVFP4,
        )

    def planes(self, tensor: TensorObject) -> tuple[PlaneSpec, ...]:
        """Planes of a tensor; InputError if its record contradicts itself or names what cannot be read."""
        where = f"{self.path}: object {plain(tensor.id)}"
        try:
            require_pair(tensor.format, tensor.layout)
            specs = plane_layout(tensor.format, tensor.shape, tensor.divisors)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if tensor.offset % TENSOR_ALIGNMENT:
            raise InputError(f"{where}: offset {tensor.offset} must be a multiple of {TENSOR_ALIGNMENT}")
        if tensor.size_bytes != specs[-1].end:
            raise InputError(
                f"{where}: expected {specs[-1].end} encoded bytes for {tensor.format} {list(tensor.shape)}, the "
                f"directory says {tensor.size_bytes}"
            )
        return specs

    def resource(self, object_id: str, max_bytes: int = MAX_RESOURCE_BYTES) -> bytes:
        """The bytes of a resource; InputError if there is none, or if it is larger than ``max_bytes``."""
        found = self.objects.get(object_id)
        where = f"{self.path}: object {plain(object_id)}"
        if not isinstance(found, ResourceObject):
            raise InputError(f"{where} {'does not exist' if found is None else 'is a tensor, not a resource'}")
        if found.encoding != RAW_BYTES:
            raise InputError(f"{where}: encoding must be {RAW_BYTES}, found {found.encoding!r}")
        if found.size_bytes > max_bytes:
            raise InputError(f"{where}: has {found.size_bytes} bytes; at most {max_bytes} are read")
        return read_spans(self.payload.spans(found.offset, found.size_bytes))

    def _plane(self, tensor: TensorObject, spec: PlaneSpec) -> Plane:
        return Plane(spec.dtype, spec.shape, self.payload.spans(tensor.offset + spec.offset, spec.size_bytes))

    def _divisors(self, tensor: TensorObject, plane: Plane) -> tuple[float, ...]:
        values = tuple(float(value) for value in plane.array())
        for index, value in enumerate(values):
            if not (isfinite(value) and value > 0):
                raise InputError(
                    f"{self.path}: object {plain(tensor.id)}: divisor {index} is {value}, it must be finite and above 0"
                )
        return values


def _open(path: Path, file: BinaryIO) -> Artifact:
    status = os.fstat(file.fileno())
    head = file.read(HEADER_BYTES)
    if len(head) < OLD_HEADER_BYTES:
        raise InputError(f"{path}: is {len(head)} bytes long, shorter than any header ({HEADER_BYTES} bytes)")
    magic = head[:8]
    version = magic[7] if magic[:7] == MAGIC_PREFIX else 0
    if version not in (1, 2, 3):
        raise InputError(f"{path}: {magic_problem(magic)}")
    header_bytes = HEADER_BYTES if magic == ENTRY_MAGIC else OLD_HEADER_BYTES
    if len(head) < header_bytes:
        raise InputError(f"{path}: is {len(head)} bytes long, shorter than the header of {header_bytes} bytes")
    header = Header.unpacked(head.ljust(HEADER_BYTES, b"\0"))
    root = _read_json(path, file, header_bytes, header.number, status.st_size)
    payload_start = align_up(header_bytes + header.number, FILE_ALIGNMENT)
    entry = PayloadFile(path, payload_start, file_identity(status))
    if version < 3:
        return _old_artifact(entry, version, root, status.st_size)
    directory = parse_directory(str(path), root)
    for index, record in enumerate(directory.files):
        if record.name == path.name:
            raise InputError(f"{path}: files[{index}]: path {record.name} is the name of the entry file itself")
    expected = payload_start + directory.files[0].payload_bytes
    if status.st_size != expected:
        raise InputError(
            f"{path}: is {status.st_size} bytes long, expected {expected}: {payload_start} before the payload and "
            f"{directory.files[0].payload_bytes} of it (truncated download?)"
        )
    return Artifact(
        path=path,
        version=version,
        artifact_id=header.artifact_id,
        payload_start=payload_start,
        entry_bytes=status.st_size,
        components=directory.components,
        objects=directory.objects,
        bindings=directory.bindings,
        uses=directory.uses,
        files=directory.files,
        metadata=directory.metadata,
        provenance=directory.provenance,
        model_id=None,
        weights_id=None,
        payload=Payload(entry, header.artifact_id, directory.files),
    )


def _read_json(path: Path, file: BinaryIO, start: int, json_bytes: int, file_bytes: int) -> Any:
    available = file_bytes - start
    if not 0 < json_bytes <= available:
        raise InputError(
            f"{path}: json_bytes at offset 8 is {json_bytes}, it must be 1 to {available}, what follows the header "
            "(truncated download?)"
        )
    if json_bytes > MAX_JSON_BYTES:
        raise InputError(f"{path}: the directory has {json_bytes} bytes; at most {MAX_JSON_BYTES} are read")
    file.seek(start)
    raw = file.read(json_bytes)
    if len(raw) < json_bytes:
        raise InputError(f"{path}: ends after {start + len(raw)} bytes, in the directory: it changed while it was read")
    try:
        return parse_strict(raw)
    except StrictJsonError as error:
        raise InputError(f"{path}: the directory (bytes {start} to {start + json_bytes}) {error}") from None


def _old_artifact(entry: PayloadFile, version: int, root: Any, file_bytes: int) -> Artifact:
    payload_bytes = max(file_bytes - entry.start, 0)
    directory = parse_old_directory(str(entry.path), root, version, payload_bytes)
    files = (FileRecord(None, payload_bytes),)
    return Artifact(
        path=entry.path,
        version=version,
        artifact_id=None,
        payload_start=entry.start,
        entry_bytes=file_bytes,
        components={},
        objects=directory.objects,
        bindings={},
        uses=(),
        files=files,
        metadata={},
        provenance={},
        model_id=directory.model_id,
        weights_id=directory.weights_id,
        payload=Payload(entry, b"", files),
    )
