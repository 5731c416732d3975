"""What a check has found: errors, with which a model cannot be right, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ninferd.errors import InputError


@dataclass
class Findings:
    """Lines that name file, object and what would be right."""

    _errors: dict[str, None] = field(default_factory=dict)
    _warnings: dict[str, None] = field(default_factory=dict)

    @property
    def errors(self) -> list[str]:
        return list(self._errors)

    @property
    def warnings(self) -> list[str]:
        return list(self._warnings)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """An InputError of the block becomes an error here."""
        try:
            yield
        except InputError as error:
            self.error(str(error))

    def error(self, line: str) -> None:
        """Many parameters can fail for one reason: a line that is there already is not repeated."""
        self._errors[line] = None

    def warn(self, line: str) -> None:
        self._warnings[line] = None
