"""JSON without what two readers could understand differently, and without what could exhaust this one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ninferd.weights.artifact.text import shown

MAX_DEPTH = 64
MAX_VALUES = 4_000_000
MAX_NUMBER_CHARACTERS = 40


class StrictJsonError(ValueError):
    """Why a text is refused, in one line."""


def parse_strict(raw: bytes) -> Any:
    """The value of a UTF-8 text.

    Raises StrictJsonError for duplicate members, NaN and infinities (also by overflow), numbers of absurd length, more
    than MAX_VALUES values, deep nesting, bytes that are no UTF-8 and anything that is no JSON.
    """
    values = sum(raw.count(mark) for mark in (b",", b"[", b"{"))  # an upper bound, strings included
    if values > MAX_VALUES:
        raise StrictJsonError(f"holds about {values} values; at most {MAX_VALUES} are read")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"is not UTF-8 at byte {error.start}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_members,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except StrictJsonError:
        raise
    except RecursionError:
        raise StrictJsonError(f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise StrictJsonError(f"is not valid JSON: {error}") from None


def require_shallow(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raises StrictJsonError if objects and arrays lie deeper in each other than ``max_depth``."""
    level = [value]
    for _ in range(max_depth):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise StrictJsonError(f"is nested deeper than {max_depth} levels")


def _children(node: Any) -> list[Any]:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _unique_members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"names the member {shown(name)} twice in one object")
            seen.add(name)
    return members


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise StrictJsonError(f"holds an integer of {len(text)} characters, starting {text[:20]}")
    return int(text)


def _finite(text: str) -> float:
    value = float(text) if len(text) <= 10 * MAX_NUMBER_CHARACTERS else math.inf
    if not math.isfinite(value):
        raise StrictJsonError(f"holds the number {text[:MAX_NUMBER_CHARACTERS]}, which is beyond a float64")
    return value


def _refuse_constant(text: str) -> Any:
    raise StrictJsonError(f"holds {text}, which is no JSON number")
