"""API keys: read from the key file and inline settings, looked up without leaking timing, never printed."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ninferd.config.files import open_regular
from ninferd.config.groups.http import ServerSettings
from ninferd.config.origin import ConfigError, Problem

MAX_KEYS_FILE_BYTES = 1 << 20
INLINE_LABEL = "default"  # of server.api_key
_LABEL = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_KEY = re.compile(r"[!-~]{1,4096}")  # what an HTTP header can carry


class ApiKeys:
    """Accepted keys by label; with none the API is open. Holds digests only."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {label: _digest(key) for label, key in keys.items()}

    @property
    def required(self) -> bool:
        """Whether a client must present a key."""
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"ApiKeys(labels={sorted(self._digests)})"

    def label_of(self, presented: str) -> str | None:
        """Label of the key a client presented, or None; takes the same time for every wrong key."""
        digest = _digest(presented)
        found = None
        for label, expected in self._digests.items():
            if hmac.compare_digest(digest, expected):
                found = label
        return found


def load_api_keys(server: ServerSettings, env: Mapping[str, str] = os.environ) -> ApiKeys:
    """Keys of the file and of the inline settings together.

    Raises ConfigError: file missing or readable by others, malformed line, label or key given twice. ``env`` tells
    ``$CREDENTIALS_DIRECTORY``: systemd hands credentials over as root's files that the unit's group may read.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for where, label, key in _entries(server, env, problems):
        reason = _objection(label, key, found)
        if reason is None:
            found[label] = key
        else:
            problems.append(Problem(where, None, reason))
    if problems:
        raise ConfigError(problems)
    return ApiKeys(found)


def _digest(key: str) -> bytes:
    """Keys of any length compare in the same time."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _objection(label: str, key: str, found: Mapping[str, str]) -> str | None:
    """What is wrong with an entry, in words that may be logged: without a key, what stands for the label may be one."""
    if not key or _LABEL.fullmatch(label) is None:
        return "label:key expected, with a label of 1 to 64 letters, digits, '.', '_', '@' or '-'"
    if _KEY.fullmatch(key) is None:
        return f'the key labelled "{label}" must be 1 to 4096 printable ASCII characters without spaces'
    if label in found:
        return f'the label "{label}" is used twice'
    if key in found.values():
        return f'the key labelled "{label}" also has another label'
    return None


def _entries(server: ServerSettings, env: Mapping[str, str], problems: list[Problem]) -> Iterator[tuple[str, str, str]]:
    """Where, label, key."""
    if server.api_key is not None:
        yield "server.api_key", INLINE_LABEL, server.api_key.get_secret_value()
    for label, secret in server.api_keys.items():
        yield "server.api_keys", label, secret.get_secret_value()
    if server.api_keys_file is None:
        return
    try:
        text = _read_private(server.api_keys_file, env)
    except OSError as error:
        reason = f"cannot be used: {error.strerror}"
        problems.append(Problem(str(server.api_keys_file), "server.api_keys_file", reason))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            label, _, key = line.strip().partition(":")
            yield f"{server.api_keys_file}:{number}", label, key


def _read_private(path: Path, env: Mapping[str, str]) -> str:
    """Content of a file that only its owner can read. Raises OSError with the reason."""
    with os.fdopen(open_regular(path), "rb") as file:
        status = os.fstat(file.fileno())
        allowed = 0o640 if _is_credential(path, env) and status.st_uid == 0 else 0o600
        if excess := stat.S_IMODE(status.st_mode) & 0o177 & ~allowed:
            raise OSError(0, f"mode {stat.S_IMODE(status.st_mode):04o} lets others in ({excess:04o}); chmod 600 it")
        data = file.read(MAX_KEYS_FILE_BYTES + 1)
    if len(data) > MAX_KEYS_FILE_BYTES:
        raise OSError(0, f"larger than {MAX_KEYS_FILE_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape")


def _is_credential(path: Path, env: Mapping[str, str]) -> bool:
    directory = env.get("CREDENTIALS_DIRECTORY")
    return bool(directory) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory or "/"))
