"""Which model a directory or file holds, as far as prompts depend on it. Free of torch, for the main process."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ninferd.errors import InputError
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.json_file import read_bounded
from ninferd.weights.resources import MAX_RESOURCE_BYTES, TOKENIZER
from ninferd.weights.stored import file_identity

_FILES = ("config.json", TOKENIZER)


def model_identity(path: Path, opened: object = None) -> str:
    """SHA-256 in hex of where the model really is and of what decides what its token ids mean.

    A link that points elsewhere and a file that was replaced in place give another identity. Of a directory only
    ``config.json`` and ``tokenizer.json`` count, and a missing one as an empty one; an artifact is one file, so any
    change of it counts. ``opened`` saves reading the directory of an artifact that is already open as a source. Raises
    InputError if a file cannot be read.
    """
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape"))
    if path.is_dir():
        contents = _directory_contents(path)
    else:
        contents = _artifact_contents(opened if isinstance(opened, ArtifactSource) else ArtifactSource.open(path))
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _directory_contents(directory: Path) -> list[bytes]:
    files = [directory / name for name in _FILES]
    return [read_bounded(file, MAX_RESOURCE_BYTES) if file.exists() else b"" for file in files]


def _artifact_contents(source: ArtifactSource) -> list[bytes]:
    try:
        version = file_identity(source.path.stat())
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read: {error.strerror}") from error
    parts = [version, source.artifact.artifact_id, source.config]
    return [*(repr(part).encode() for part in parts), source.resource(TOKENIZER) or b""]
