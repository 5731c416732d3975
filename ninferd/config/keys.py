"""Every configuration key of the schema as a flat catalogue."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from ninferd.config.describe import accepted, value_types
from ninferd.config.field import Reload
from ninferd.config.schema import Settings

ENV_PREFIX = "NINFERD_"


@dataclass(frozen=True)
class KeySpec:
    """One key: where it is, what it takes, and what a change of it does."""

    path: tuple[str, ...]
    help: str
    accepted: str  # noun phrase, e.g. "an integer in 1..65535"
    unit: str | None
    reload: Reload
    flag: str | None  # reference command-line name
    secret: bool
    required: bool
    default: Any  # None: unset
    annotation: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def env(self) -> str:
        """``NINFERD_<GROUP>_<NAME>``; a double underscore before each name of a sub-table."""
        group, *rest = self.path
        return f"{ENV_PREFIX}{group}_{'__'.join(rest)}".upper()

    def value(self, settings: Settings) -> Any:
        """The key's value in ``settings``."""
        value: Any = settings
        for part in self.path:
            value = getattr(value, part)
        return value


def _model_of(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _walk(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[KeySpec]:
    for name, field in model.model_fields.items():
        table = _model_of(field.annotation)
        if table is None:
            yield _spec((*path, name), field)
        else:
            yield from _walk(table, (*path, name))


def _tables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        if table := _model_of(field.annotation):
            yield prefix + name, table
            yield from _tables(table, f"{prefix}{name}.")


def _spec(path: tuple[str, ...], field: FieldInfo) -> KeySpec:
    extra = cast("dict[str, dict[str, Any]]", field.json_schema_extra)
    return KeySpec(
        path=path,
        help=field.description or "",
        accepted=accepted(field.annotation, field.metadata),
        required=field.is_required(),
        default=None if field.is_required() else field.default,
        annotation=field.annotation,
        **extra["ninferd"],
    )


KEYS: Mapping[str, KeySpec] = MappingProxyType({spec.name: spec for spec in _walk(Settings, ())})
TABLES: Mapping[str, type[BaseModel]] = MappingProxyType(dict(_tables(Settings, "")))
"""Every TOML table by its dotted name."""


def takes_only_text(spec: KeySpec) -> bool:
    """Whether every value of the key is a string in TOML (strings, paths, secrets, choices)."""
    return value_types(spec.annotation) <= {str, Path, SecretStr}


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``name`` was probably meant to be."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.75)
    return matches[0] if matches else None


def hint(name: str) -> str:
    """Text to append to "unknown key": the key that was probably meant, else nothing.

    The same name in another table is likelier than a similar name.
    """
    by_last_part = {spec.path[-1]: spec.name for spec in reversed([*KEYS.values()])}
    last_part = name.rsplit(".", 1)[-1]
    known = by_last_part.get(last_part) or closest(name, KEYS)
    return f"; did you mean {known}?" if known else ""


def table_hint(name: str) -> str:
    """Text to append to "unknown table"."""
    known = closest(name, (table for table in TABLES if table.count(".") == name.count(".")))
    return f"; did you mean [{known}]?" if known else ""
