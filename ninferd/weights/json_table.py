"""Typed access to a JSON object from outside whose errors name where it stands and the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ninferd.errors import InputError

MAX_SHOWN_CHARACTERS = 60


class JsonTable:
    """A JSON object; a key with the value null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def error(self, key: str, problem: str) -> InputError:
        """The error to raise about ``key``."""
        return InputError(f"{self._where}: {key} {problem}")

    def require_only(self, keys: Collection[str]) -> None:
        """InputError naming a member that is not one of ``keys``."""
        unknown = sorted(self._values.keys() - set(keys))
        if unknown:
            raise InputError(f"{self._where}: unknown member {shown(unknown[0])}; known: {', '.join(sorted(keys))}")

    def integer(self, key: str, maximum: int, minimum: int = 1) -> int:
        value = self._require(key)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(key, f"must be an integer from {minimum} to {maximum}, not {shown(value)}")
        return value

    def number(self, key: str, maximum: float) -> float:
        """A number above zero."""
        value = self._require(key)
        if type(value) not in (int, float) or not 0 < value <= maximum:
            raise self.error(key, f"must be a number above 0 and up to {maximum:g}, not {shown(value)}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self._require(key)
        if type(value) is not bool:
            raise self.error(key, f"must be true or false, not {shown(value)}")
        return value

    def string(self, key: str) -> str:
        value = self._require(key)
        if type(value) is not str:
            raise self.error(key, f"must be a string, not {shown(value)}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._require(key)
        if type(value) is not list:
            raise self.error(key, f"must be a list, not {shown(value)}")
        return value

    def integers(self, key: str, maximum: int) -> tuple[int, ...]:
        """A list of integers from 0."""
        values = self.items(key)
        for value in values:
            if type(value) is not int or not 0 <= value <= maximum:
                raise self.error(key, f"must hold integers from 0 to {maximum}, not {shown(value)}")
        return tuple(values)

    def table(self, key: str) -> JsonTable:
        value = self._require(key)
        if type(value) is not dict:
            raise self.error(key, f"must be an object, not {shown(value)}")
        return JsonTable(value, f"{self._where}: {key}")

    def equals(self, key: str, expected: object) -> bool:
        """Whether ``key`` has exactly the ``expected`` value; 1 and true are different."""
        value = self._values.get(key)
        return type(value) is type(expected) and value == expected

    def require_equal(self, key: str, expected: object) -> None:
        """InputError unless ``key`` has exactly the ``expected`` value."""
        if not self.equals(key, expected):
            raise self.error(key, f"must be {shown(expected)}, not {shown(self._require(key))}")

    def _require(self, key: str) -> Any:
        if key not in self:
            raise self.error(key, "is missing")
        return self._values[key]


def shown(value: object) -> str:
    """``value`` for a message: one line, not too long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
