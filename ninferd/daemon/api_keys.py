"""API keys from the configuration and from the key file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ninferd.api.auth import ApiKeys
from ninferd.config.schema import Settings
from ninferd.errors import InputError

MAX_FILE_BYTES = 1 << 20
INLINE_LABEL = "default"


def load_api_keys(settings: Settings) -> ApiKeys:
    """All keys by label. Raises InputError naming the line or key; a message never contains a key."""
    server = settings.server
    keys = {label: secret.get_secret_value() for label, secret in server.api_keys.items()}
    if server.api_key is not None:
        _add(keys, INLINE_LABEL, server.api_key.get_secret_value(), "server.api_key")
    if server.api_keys_file is not None:
        for where, label, key in _read_file(server.api_keys_file):
            _add(keys, label, key, where)
    return ApiKeys(keys)


def _add(keys: dict[str, str], label: str, key: str, where: str) -> None:
    if label in keys:
        raise InputError(f"{where}: the label {label!r} is used twice")
    keys[label] = key


def _read_file(path: Path) -> list[tuple[str, str, str]]:
    """(place, label, key) of every ``label:key`` line; blank lines and ``#`` comments are skipped."""
    entries = []
    for number, line in enumerate(_private_text(path).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        label, separator, key = text.partition(":")
        if not (label.strip() and separator and key.strip()):
            raise InputError(f"{path}:{number}: server.api_keys_file: a line must read label:key")
        entries.append((f"{path}:{number}", label.strip(), key.strip()))
    return entries


def _private_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: server.api_keys_file: cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise InputError(f"{path}: server.api_keys_file: mode {mode:04o} lets others read keys; chmod 600 {path}")
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"{path}: server.api_keys_file: is larger than {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: server.api_keys_file: is not UTF-8: {error.reason}") from None
