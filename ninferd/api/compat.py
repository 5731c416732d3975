"""Lenient and strict handling of what cannot be honoured (serving §2.6)."""

from __future__ import annotations

from typing import Literal


class Leniency:
    """Decides, and remembers what was ignored for the ``x-ninfer-ignored`` header of one response."""

    def __init__(self, mode: Literal["lenient", "strict"]) -> None:
        self.lenient = mode == "lenient"
        self._ignored: dict[str, None] = {}

    def ignore(self, item: str) -> bool:
        """True when the item may be ignored (and is now recorded), False when it must be refused."""
        if self.lenient:
            self._ignored[item] = None
        return self.lenient

    @property
    def ignored(self) -> tuple[str, ...]:
        """Ignored items in the order they were met, each once."""
        return tuple(self._ignored)
