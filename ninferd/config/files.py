"""Reading configuration files: bounded, regular, UTF-8, TOML, each key with its line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninferd.config.origin import ConfigError, Problem
from ninferd.config.toml_lines import KeyPath, key_lines

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32  # of tables and arrays in each other; the schema itself needs 3
_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class Document:
    """One parsed file."""

    path: Path
    tree: Mapping[str, Any] = field(repr=False)  # may hold secrets
    lines: Mapping[KeyPath, int]


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file; never blocks on a FIFO. Symbolic links are followed.

    Raises OSError; a file of another kind is an OSError that names the kind.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device or socket"
        raise OSError(0, f"not a regular file but {kind}")
    return descriptor


def is_missing(path: Path) -> bool:
    """Whether there is nothing at ``path``; a dangling link or an unreadable directory is something."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def list_toml(directory: Path) -> list[Path]:
    """``*.toml`` of a directory in name order, hidden files aside; a missing directory is empty.

    Raises ConfigError if it cannot be listed.
    """
    if is_missing(directory):
        return []
    try:
        entries = sorted(directory.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise ConfigError([Problem(str(directory), None, f"cannot be listed: {error.strerror}")]) from error
    return [path for path in entries if path.suffix == ".toml" and not path.name.startswith(".")]


def read_bounded(path: Path, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The whole file. Raises ConfigError if it is missing, unreadable, not regular or larger than ``limit_bytes``."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigError([Problem(str(path), None, f"cannot be read: {error.strerror}")]) from error
    if len(data) > limit_bytes:
        raise ConfigError([Problem(str(path), None, f"larger than {limit_bytes} bytes")])
    return data


def read_document(path: Path) -> Document:
    """Parse one TOML file. Raises ConfigError with FILE:LINE."""
    data = read_bounded(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(f"{path}:{line}", None, "not UTF-8 text")]) from error
    return parse_document(path, text)


def parse_toml(text: str) -> dict[str, Any]:
    """``tomllib.loads`` with a bound on nesting. Raises ValueError (TOMLDecodeError for syntax) or RecursionError."""
    tree = tomllib.loads(text)
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH + 1):  # the root is no nesting
        level = [child for node in level for child in _children(node)]
    if level:
        raise ValueError(f"more than {MAX_DEPTH} tables or arrays in each other")
    return tree


def _children(node: Any) -> Iterable[Any]:
    """Tables and arrays directly in a table or array."""
    items: Iterable[Any] = node.values() if isinstance(node, dict) else node
    return (item for item in items if isinstance(item, dict | list))


def parse_document(path: Path, text: str) -> Document:
    """Parse TOML text that is, or will be, the content of ``path``. Raises ConfigError with FILE:LINE."""
    try:
        return Document(path, parse_toml(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = _POSITION.search(message)
        if position is None:  # "(at end of document)"
            line, column = text.count("\n") + 1, ""
        else:
            message = message[: position.start()]
            line, column = int(position[1]), f" (column {position[2]})"
        raise ConfigError([Problem(f"{path}:{line}", None, f"TOML syntax: {message}{column}")]) from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits and absurd nesting leave tomllib without a position.
        raise ConfigError([Problem(str(path), None, f"TOML cannot be read: {error}")]) from error
