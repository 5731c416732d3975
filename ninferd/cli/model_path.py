"""PATH of the model commands."""

from __future__ import annotations

from pathlib import Path

from ninferd.errors import InputError
from ninferd.weights.locate import EMBEDDED_PREFIX, artifact_path


def model_path(text: str) -> Path:
    """The file or directory that a PATH argument names; InputError if there is nothing, or out of reach."""
    if text.startswith(EMBEDDED_PREFIX):
        return artifact_path(text)
    path = Path(text)
    try:
        path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return path
