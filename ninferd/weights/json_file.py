"""Reading the small files of a model directory: bounded, regular, JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.strict_json import StrictJsonError, parse_strict, require_shallow


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The whole file. Raises InputError if it is missing, no regular file or larger than ``max_bytes``."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > max_bytes:
        raise InputError(f"{path}: is larger than {max_bytes} bytes")
    return raw


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises InputError if it is missing, larger than ``max_bytes``, ambiguous (a member twice) or no object.
    """
    try:
        value = parse_strict(read_bounded(path, max_bytes))
        require_shallow(value)
    except StrictJsonError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value
