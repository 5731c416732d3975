"""From the configured artifact to the directory that holds it. Free of torch: the main process uses it too."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ninferd.errors import InputError

EMBEDDED_PREFIX = "embedded:"
EMBEDDED_DIRECTORIES = {"ninfer-tiny": "ninfer_tiny"}


def artifact_directory(artifact: str) -> Path:
    """Directory of ``artifact``: ``embedded:NAME`` for a shipped model, else the path of a Hugging Face directory.

    Raises InputError if it is not a directory with a ``config.json``, or out of this user's reach.
    """
    if artifact.startswith(EMBEDDED_PREFIX):
        directory = _embedded_directory(artifact.removeprefix(EMBEDDED_PREFIX))
    else:
        directory = Path(artifact).expanduser()
    try:
        _require_model_directory(directory)
    except PermissionError as error:
        raise InputError(
            f"model.artifact: {error.filename} is out of reach: Permission denied; the user that runs ninferd must be "
            "able to enter the directory and those above it"
        ) from error
    return directory


def _require_model_directory(directory: Path) -> None:
    if not directory.exists():
        raise InputError(f"model.artifact: {directory} does not exist; it must be a Hugging Face model directory")
    if not directory.is_dir():
        raise InputError(f"model.artifact: {directory} is not a directory; it must be a Hugging Face model directory")
    if not (directory / "config.json").is_file():
        raise InputError(f"model.artifact: {directory} has no config.json, so it is not a Hugging Face model directory")


def _embedded_directory(name: str) -> Path:
    if name not in EMBEDDED_DIRECTORIES:
        known = ", ".join(EMBEDDED_PREFIX + each for each in EMBEDDED_DIRECTORIES)
        raise InputError(f"model.artifact: there is no embedded model {name!r}; known: {known}")
    return Path(str(files("ninferd") / "assets" / EMBEDDED_DIRECTORIES[name]))
