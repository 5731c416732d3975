"""Questions with fixed answers (``facts.toml``): who the model is, greetings, everyday facts, and a few short texts."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("facts.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Table:
    """Facts of one kind: question templates with ``{0}``, an answer template with ``{0}`` and ``{1}``, the pairs."""

    questions: tuple[str, ...]
    answer: str
    entries: dict[str, str]

    def reply(self, subject: str) -> str:
        """Returns the answer about a subject as a sentence."""
        text = self.answer.format(subject, self.entries[subject])
        return text[0].upper() + text[1:]


TABLES: dict[str, Table] = {
    name: Table(tuple(table["questions"]), table["answer"], table["entries"]) for name, table in _DATA["tables"].items()
}

FIXED: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (tuple(item["questions"]), item["answer"]) for item in _DATA["fixed"]
)
"""(ways to ask, answer); the first 18 are small talk about the model itself, greetings and thanks."""

CHAT = 18

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
