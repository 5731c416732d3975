"""JSON whose numbers keep their spelling.

A model that wrote ``100e-2`` must find ``100e-2`` when the client replays the call: a rewritten number is another
prompt and loses the cached prefix.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


class NumberText(float):
    """A float that prints as it was written."""

    text: str

    def __new__(cls, text: str) -> NumberText:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


_decoder = msgspec.json.Decoder(float_hook=NumberText)


def loads(text: str | bytes) -> Any:
    """Parse; raises ValueError for anything that is not JSON (also for nesting beyond the interpreter's limit)."""
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error


def dumps(value: object, separators: tuple[str, str] = (", ", ": ")) -> str:
    """``json.dumps(value, ensure_ascii=False)`` with numbers as they were read."""
    item_separator, key_separator = separators
    if isinstance(value, NumberText):
        return value.text
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        members = (f"{dumps(key)}{key_separator}{dumps(item, separators)}" for key, item in value.items())
        return "{" + item_separator.join(members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + item_separator.join(dumps(item, separators) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False, separators=separators)
