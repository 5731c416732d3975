"""Text that comes from a file, made fit for a one-line message."""

from __future__ import annotations

from typing import Any

MAX_SHOWN_CHARACTERS = 80
MAX_SHOWN_ITEMS = 8


def shown(value: Any) -> str:
    """A JSON value as it stands in a message: escaped, and cut where it is long."""
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    if isinstance(value, list):
        if 0 < len(value) <= MAX_SHOWN_ITEMS and not any(isinstance(item, (dict, list)) for item in value):
            text = f"[{', '.join(map(shown, value))}]"
            if len(text) <= MAX_SHOWN_CHARACTERS:
                return text
        return f"an array of {len(value)} items"
    if isinstance(value, str):
        cut = value[:MAX_SHOWN_CHARACTERS]
        return repr(cut) + (f"... ({len(value)} characters)" if len(value) > len(cut) else "")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def plain(identifier: str) -> str:
    """An identifier without quotes where it is short and printable."""
    fits = 0 < len(identifier) <= MAX_SHOWN_CHARACTERS
    return identifier if fits and identifier.isprintable() else shown(identifier)
