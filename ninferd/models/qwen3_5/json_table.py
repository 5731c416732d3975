"""Typed access to a JSON object whose errors name the file and the key."""

from __future__ import annotations

from typing import Any

from ninferd.errors import InputError


class JsonTable:
    """A JSON object; a key with the value null counts as absent."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def error(self, key: str, problem: str) -> InputError:
        """The error to raise about ``key``."""
        return InputError(f"{self._where}: {key} {problem}")

    def integer(self, key: str, maximum: int, minimum: int = 1) -> int:
        value = self._require(key)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(key, f"must be an integer from {minimum} to {maximum}, not {value!r}")
        return value

    def number(self, key: str, maximum: float) -> float:
        """A number above zero."""
        value = self._require(key)
        if type(value) not in (int, float) or not 0 < value <= maximum:
            raise self.error(key, f"must be a number above 0 and up to {maximum:g}, not {value!r}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self._require(key)
        if type(value) is not bool:
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def string(self, key: str) -> str:
        value = self._require(key)
        if type(value) is not str:
            raise self.error(key, f"must be a string, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._require(key)
        if type(value) is not list:
            raise self.error(key, f"must be a list, not {value!r}")
        return value

    def table(self, key: str) -> JsonTable:
        value = self._require(key)
        if type(value) is not dict:
            raise self.error(key, f"must be an object, not {value!r}")
        return JsonTable(value, f"{self._where}: {key}")

    def _require(self, key: str) -> Any:
        if key not in self:
            raise self.error(key, "is missing")
        return self._values[key]
