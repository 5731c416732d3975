"""Word lists that the synthetic families draw names, keys and values from (``words.toml``)."""

import tomllib
from pathlib import Path

_LISTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def _words(name: str) -> tuple[str, ...]:
    return tuple(_LISTS[name].split())


ADJECTIVES = _words("adjectives")
NOUNS = _words("nouns")
VERBS = _words("verbs")
OBJECTS = _words("objects")
PARAMETERS = _words("parameters")
PEOPLE = _words("people")
CITIES = _words("cities")
FOREIGN = _words("foreign")
