"""From the configured artifact to the directory or file that holds it. Free of torch: the main process uses it too."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from ninferd.config.files import open_regular
from ninferd.errors import InputError

EMBEDDED_PREFIX = "embedded:"
EMBEDDED_PATHS = {"ninfer-tiny": "ninfer_tiny_nvfp4/ninfer-tiny.ninfer", "ninfer-tiny-bf16": "ninfer_tiny"}
"""Name to path under ``ninferd/assets``."""

ENTRY_MAGIC = b"NINFER\0"
"""First bytes of an artifact; the container's version follows."""
PART_MAGIC = b"NINPRT\0"

_KINDS = "a .ninfer file or a Hugging Face model directory"


def artifact_path(artifact: str) -> Path:
    """Where ``artifact`` lies: ``embedded:NAME`` for a shipped model, else a path.

    Raises InputError if it is neither a directory with a ``config.json`` nor a regular file that begins as an artifact
    does, or out of this user's reach.
    """
    if artifact.startswith(EMBEDDED_PREFIX):
        path = _embedded_path(artifact.removeprefix(EMBEDDED_PREFIX))
    else:
        path = Path(artifact).expanduser()
    try:
        if path.is_dir():
            _require_model_directory(path)
        else:
            _require_artifact_file(path)
    except PermissionError as error:
        raise InputError(
            f"model.artifact: {error.filename or path} is out of reach: Permission denied; the user that runs ninferd "
            "must be able to read it and to enter the directories above it"
        ) from error
    except OSError as error:
        raise InputError(f"model.artifact: {path} cannot be read: {error.strerror}; it must be {_KINDS}") from error
    return path


def default_name(artifact: str) -> str:
    """What a model is called that the configuration gives no name: the last part of where it really lies."""
    if artifact.startswith(EMBEDDED_PREFIX):
        return artifact.removeprefix(EMBEDDED_PREFIX)
    path = Path(artifact).expanduser().resolve()
    return path.stem if path.suffix == ".ninfer" else path.name


def _require_model_directory(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise InputError(
            f"model.artifact: {directory} has no config.json, so it is not a Hugging Face model directory; "
            "name one, or a .ninfer file"
        )


def _require_artifact_file(path: Path) -> None:
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"model.artifact: {path} does not exist; it must be {_KINDS}") from error
    try:
        magic = os.read(descriptor, len(ENTRY_MAGIC))
    finally:
        os.close(descriptor)
    if magic == PART_MAGIC:
        raise InputError(
            f"model.artifact: {path} is a continuation file of an artifact; name the entry file, of which it is a part"
        )
    if magic != ENTRY_MAGIC:
        raise InputError(
            f"model.artifact: {path} begins with {magic!r}, so it is not a .ninfer file; it must be {_KINDS}"
        )


def _embedded_path(name: str) -> Path:
    if name not in EMBEDDED_PATHS:
        known = ", ".join(EMBEDDED_PREFIX + each for each in EMBEDDED_PATHS)
        raise InputError(f"model.artifact: there is no embedded model {name!r}; known: {known}")
    return Path(str(files("ninferd") / "assets" / EMBEDDED_PATHS[name]))
