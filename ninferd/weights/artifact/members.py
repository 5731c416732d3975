"""Taking the members of JSON objects: type, bounds and closed sets, with messages that say where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import U64_MAX
from ninferd.weights.artifact.text import shown

MAX_NAME_CHARACTERS = 128  # of formats, layouts and encodings; real ones have under 40


class Members:
    """One JSON object whose set of members is closed."""

    def __init__(self, where: str, value: Any, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        """InputError if ``value`` is no object, lacks a required member or has one of neither set."""
        self.where = where
        self._members = json_object(where, value)
        required, optional = tuple(required), tuple(optional)
        for name in required:
            if name not in self._members:
                raise InputError(f"{where}: member {name!r} is missing")
        for name in self._members:
            if name not in required and name not in optional:
                raise InputError(
                    f"{where}: unknown member {shown(name)}; known are {', '.join((*required, *optional))}"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def value(self, name: str) -> Any:
        return self._members[name]

    def integer(self, name: str, minimum: int = 0) -> int:
        return integer(f"{self.where}: {name}", self._members[name], minimum)

    def identifier(self, name: str) -> str:
        return identifier(f"{self.where}: {name}", self._members[name])

    def short_name(self, name: str) -> str:
        """The name of a format, layout or encoding; messages quote it as it is."""
        text = self.identifier(name)
        if len(text) > MAX_NAME_CHARACTERS or not text.isprintable():
            raise InputError(
                f"{self.where}: {name} must be a printable name of at most {MAX_NAME_CHARACTERS} characters, found "
                f"{shown(text)}"
            )
        return text

    def object(self, name: str) -> dict[str, Any]:
        return json_object(f"{self.where}: {name}", self._members[name])

    def array(self, name: str) -> list[Any]:
        return json_array(f"{self.where}: {name}", self._members[name])


def integer(where: str, value: Any, minimum: int = 0) -> int:
    """A JSON integer token of ``minimum`` to 2^64-1; InputError otherwise."""
    if type(value) is not int or not minimum <= value <= U64_MAX:
        raise InputError(f"{where} must be an integer of {minimum} to 2^64-1, found {shown(value)}")
    return value


def identifier(where: str, value: Any) -> str:
    """A non-empty string without NUL that UTF-8 can hold; InputError otherwise."""
    if not isinstance(value, str) or not value or "\0" in value or not _is_unicode(value):
        raise InputError(f"{where} must be a non-empty string of valid Unicode without NUL, found {shown(value)}")
    return value


def json_object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a JSON object, found {shown(value)}")
    return value


def json_array(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a JSON array, found {shown(value)}")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return False
    return True
