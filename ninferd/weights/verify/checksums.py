"""SHA-256 of a model's files against what was published: neither container has a checksum of its own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninferd.config.files import is_missing, open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.text import shown
from ninferd.weights.json_file import read_bounded

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

LIST_NAME = "SHA256SUMS"
MAX_LIST_BYTES = 4 << 20
CHUNK_BYTES = 4 << 20
_WEIGHTS_SUFFIX = ".safetensors"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64})(?:[ \t]+\*?(?:\./)?(?P<name>\S.*))?")


@dataclass(frozen=True)
class Expected:
    """What a file must hash to, and who says so."""

    path: Path
    digest: str  # lower case
    where: str


def check_sha256(path: Path, expected_hex: str | None, on_progress: OnProgress) -> None:
    """Read a model's files and compare them with ``expected_hex`` and the lists beside them, see ``expected_files``.

    Raises InputError naming the file if one differs or cannot be read, and if nothing says what it should be.
    """
    expected = expected_files(path, expected_hex)
    if not expected:
        raise InputError(
            f"{path}: there is no SHA-256 to compare it with: neither {_places(path)} nor a configured one"
        )
    check_files(expected, on_progress)


def expected_files(path: Path, expected_hex: str | None = None) -> tuple[Expected, ...]:
    """Checksums of the files of an artifact or Hugging Face directory; empty if nobody says anything.

    An artifact's are in ``FILE.sha256``, else in ``SHA256SUMS`` beside it; ``expected_hex`` is that of the entry file
    and wins. A directory's are in its ``SHA256SUMS``. Raises InputError if a list has a wrong line or lacks one of
    the files with weights.
    """
    if expected_hex is not None and not _DIGEST.fullmatch(expected_hex):
        raise InputError(f"{path}: a SHA-256 has 64 hexadecimal digits, found {shown(expected_hex)}")
    if path.is_dir():
        if expected_hex is not None:
            raise InputError(
                f"{path}: is a directory, and one SHA-256 is that of a file; list its files in {LIST_NAME}"
            )
        return _of_directory(path)
    return _of_artifact(path, expected_hex)


def check_files(expected: Sequence[Expected], on_progress: OnProgress) -> None:
    """Hash all files; InputError for the first one that differs."""
    total = sum(_size(each.path) for each in expected)
    done = 0
    for each in expected:
        before = done

        def advance(read: int, before: int = before) -> None:
            on_progress(before + read, total)

        found, size = _sha256(each.path, advance)
        if found != each.digest:
            raise InputError(f"{each.path}: SHA-256 is {found}, expected {each.digest} ({each.where})")
        done += size


def _of_artifact(path: Path, expected_hex: str | None) -> tuple[Expected, ...]:
    list_path = path.with_name(f"{path.name}.sha256")
    if is_missing(list_path):
        list_path = path.with_name(LIST_NAME)
    listed = {} if is_missing(list_path) else _read_list(list_path, path.name)
    if expected_hex is not None:
        entry = Expected(path, expected_hex.lower(), "as given")
    elif path.name in listed:
        entry = Expected(path, listed[path.name], str(list_path))
    else:
        return ()
    artifact = Artifact.open(path)
    parts = []
    for index, record in enumerate(artifact.files[1:], 1):
        name = str(record.name)
        if name not in listed:
            raise InputError(f"{path}: there is no SHA-256 of its part {name} in {_places(path)}")
        parts.append(Expected(artifact.payload.part_path(index), listed[name], str(list_path)))
    return (entry, *parts)


def _of_directory(path: Path) -> tuple[Expected, ...]:
    list_path = path / LIST_NAME
    if is_missing(list_path):
        return ()
    listed = _read_list(list_path)
    for file in sorted(path.glob(f"*{_WEIGHTS_SUFFIX}")):
        if file.name not in listed:
            raise InputError(f"{list_path}: has no line for {file.name}")
    return tuple(Expected(path / name, digest, str(list_path)) for name, digest in listed.items())


def _read_list(path: Path, only_name: str | None = None) -> Mapping[str, str]:
    """Lines of ``sha256sum``, by file name. A digest alone, or on the only line of FILE.sha256, is that of FILE."""
    try:
        text = read_bounded(path, MAX_LIST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 at byte {error.start}") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    is_sidecar = path.name != LIST_NAME
    listed: dict[str, str] = {}
    for number, line in lines:
        found = _LINE.fullmatch(line)
        name = None if found is None else found["name"]
        if is_sidecar and (name is None or len(lines) == 1):
            name = only_name
        if found is None or name is None:
            raise InputError(f"{path}:{number}: must be 64 hexadecimal digits and a file name, found {shown(line)}")
        digest = found["digest"].lower()
        if listed.setdefault(name, digest) != digest:
            raise InputError(f"{path}:{number}: {shown(name)} has another SHA-256 than in a line before")
    return listed


def _places(path: Path) -> str:
    return str(path / LIST_NAME) if path.is_dir() else f"{path}.sha256 or {path.with_name(LIST_NAME)}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _sha256(path: Path, on_read: Callable[[int], None]) -> tuple[str, int]:
    """(digest, bytes) of a file."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    size = 0
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            while read := file.readinto(buffer):
                digest.update(buffer[:read])
                size += read
                on_read(size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest(), size
