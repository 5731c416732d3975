"""Frontend files of a model, from a directory or out of an artifact: bounded, UTF-8, JSON where they must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from ninferd.errors import InputError

MAX_RESOURCE_BYTES = 256 << 20
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


class FrontendFiles(Protocol):
    """The part of ``ModelSource`` that prompts depend on."""

    @property
    def path(self) -> Path:
        """File or directory, for messages."""

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``, or its equivalent in the same spelling."""

    def resource(self, name: str) -> bytes | None:
        """A file by its Hugging Face name; None if absent."""


def place(files: FrontendFiles, name: str) -> str:
    """Where a file lies, for messages: ``DIRECTORY/NAME``, or ``FILE: resource NAME``."""
    return str(files.path / name) if files.path.is_dir() else f"{files.path}: resource {name}"


def text_resource(files: FrontendFiles, name: str) -> str | None:
    """The content of a text file, None if there is none. Raises InputError if it is not UTF-8 or too large."""
    raw = files.resource(name)
    if raw is None:
        return None
    where = place(files, name)
    if len(raw) > MAX_RESOURCE_BYTES:
        raise InputError(f"{where}: is larger than {MAX_RESOURCE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8: {error.reason} at byte {error.start}") from error


def json_resource(files: FrontendFiles, name: str) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no such file. Raises InputError if it holds anything else."""
    text = text_resource(files, name)
    if text is None:
        return None
    where = place(files, name)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: must hold a JSON object, not {type(value).__name__}")
    return value
