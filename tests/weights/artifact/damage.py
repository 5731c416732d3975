"""Small damages to the golden file, described by where and what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.weights.artifact import golden
from tests.weights.artifact.support import framed

Damage = Callable[[dict[str, Any]], object]
"""Changes a directory in place."""

PAYLOAD = golden.golden_file()[golden.PAYLOAD_START :]
TENSOR = "objects", 1  # t/bf16


def damaged(*damages: Damage) -> bytes:
    """The golden file with a changed directory and the payload as it was."""
    directory = json.loads(golden.JSON)
    for damage in damages:
        damage(directory)
    return framed(directory, PAYLOAD)


def put(value: Any, *path: str | int) -> Damage:
    """Set what is at ``path`` from the root."""

    def change(directory: dict[str, Any]) -> None:
        *above, last = path
        _at(directory, above)[last] = value

    return change


def drop(*path: str | int) -> Damage:
    """Remove what is at ``path``."""

    def change(directory: dict[str, Any]) -> None:
        *above, last = path
        del _at(directory, above)[last]

    return change


def append(value: Any, *path: str | int) -> Damage:
    """Append to the array at ``path``."""
    return lambda directory: _at(directory, list(path)).append(value)


def swap(first: int, second: int) -> Damage:
    """Exchange two objects."""

    def change(directory: dict[str, Any]) -> None:
        objects = directory["objects"]
        objects[first], objects[second] = objects[second], objects[first]

    return change


def _at(node: Any, path: list[str | int]) -> Any:
    for step in path:
        node = node[step]
    return node
