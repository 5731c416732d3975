"""How one configuration key is declared: its value constraints plus what operators and ``reload`` need to know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, Strict

Reload = Literal["live", "engine", "process"]
"""When a changed value takes effect: at once, with a replaced engine child, or only with a restart of the unit."""


def _usable_path(value: object) -> object:
    """The empty string would mean the working directory, and the system takes no NUL."""
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError("not a path")
    return value


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("not a path")
    return value


SHA256_PATTERN = "^[0-9a-fA-F]{64}$"

PathValue = Annotated[Path, Strict(False), BeforeValidator(_usable_path)]  # TOML has no path type: text is meant
PathText = Annotated[str, AfterValidator(_without_nul)]  # where not every value is a path
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)]  # nor tuples: an array is meant


class Table(BaseModel):
    """Base of every TOML table: immutable, no silent conversion, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def key(
    default: object,
    help_text: str,
    *,
    reload: Reload,
    unit: str | None = None,
    flag: str | None = None,
    secret: bool = False,
    **constraints: Any,
) -> Any:
    """A pydantic field with its operator-facing facts; ``default=...`` makes it required.

    ``flag`` is the reference command-line name; ``constraints`` are pydantic's (``ge``, ``le``, ``multiple_of``,
    ``min_length``, ``pattern``).
    """
    facts: dict[str, JsonValue] = {"reload": reload, "unit": unit, "flag": flag, "secret": secret}
    return Field(default, description=help_text, json_schema_extra={"ninferd": facts}, **constraints)
