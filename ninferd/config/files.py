"""Reading configuration files: bounded, regular, UTF-8, TOML, each key with its line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninferd.config.origin import ConfigError, Problem
from ninferd.config.toml_lines import KeyPath, key_lines

MAX_FILE_BYTES = 1 << 20
MAX_INTEGER_BITS = 64  # TOML's own bound, and that of a seed
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


class TomlBoundsError(ValueError):
    """Valid TOML that is refused before anything walks it; ``line_known`` says whether ``path`` may be looked up."""

    def __init__(self, path: KeyPath, reason: str, *, line_known: bool) -> None:
        super().__init__(reason)
        self.path = path
        self.line_known = line_known


def parse_toml(text: str) -> dict[str, Any]:
    """``tomllib.loads`` with bounds on nesting and numbers.

    Raises TOMLDecodeError for syntax, TomlBoundsError, and ValueError or RecursionError where tomllib itself gives up.
    """
    tree = tomllib.loads(text)
    level: list[tuple[KeyPath, Any]] = [((), tree)]
    for _ in range(MAX_DEPTH + 1):  # the root is no nesting
        level = [child for path, node in level for child in _children(path, node)]
    if level:
        path = level[0][0]
        raise TomlBoundsError(path, f"more than {MAX_DEPTH} tables or arrays in each other", line_known=False)
    return tree


def _children(path: KeyPath, node: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Tables and arrays directly in a table or array."""
    items: Iterable[tuple[str | int, Any]] = node.items() if isinstance(node, dict) else enumerate(node)
    for name, item in items:
        if isinstance(item, dict | list):
            yield (*path, name), item
        elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
            raise TomlBoundsError((*path, name), f"an integer beyond {MAX_INTEGER_BITS} bits", line_known=True)


def parse_document(path: Path, text: str) -> Document:
    """Parse TOML text that is, or will be, the content of ``path``. Raises ConfigError with FILE:LINE."""
    try:
        return Document(path, parse_toml(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        problem = _syntax_problem(path, text, str(error))
    except TomlBoundsError as fault:
        line = f":{key_lines(text)[fault.path]}" if fault.line_known else ""
        problem = Problem(f"{path}{line}", ".".join(map(str, fault.path[:4])), str(fault))
    except (ValueError, RecursionError) as error:
        # Decimal numbers of thousands of digits and absurd nesting leave tomllib without a position.
        problem = Problem(str(path), None, f"TOML cannot be read: {error}")
    raise ConfigError([problem])


def _syntax_problem(path: Path, text: str, message: str) -> Problem:
    """tomllib names the place at the end of its message only, or says "(at end of document)"."""
    position = _POSITION.search(message)
    if position is None:
        return Problem(f"{path}:{text.count(chr(10)) + 1}", None, f"TOML syntax: {message}")
    reason = f"TOML syntax: {message[: position.start()]} (column {position[2]})"
    return Problem(f"{path}:{position[1]}", None, reason)
