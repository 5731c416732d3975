"""Words for values: what a key accepts, and how a value is written in TOML and in messages."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
import tomli_w
from pydantic import BaseModel, JsonValue, SecretStr
from pydantic.fields import FieldInfo

from ninferd.config.field import SHA256_PATTERN

REDACTED = "<redacted>"
_MAX_SHOWN_CHARS = 80


def accepted(annotation: Any, metadata: Sequence[Any]) -> str:
    """What values a type with pydantic constraints takes, as a noun phrase."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return accepted(inner, [*metadata, *_flatten(more)])
    if origin in (Union, types.UnionType):
        branches = [branch for branch in get_args(annotation) if branch is not types.NoneType]
        return " or ".join(accepted(branch, metadata) for branch in branches)
    if origin is Literal:
        choices = [f'"{choice}"' for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin is tuple:
        return f"an array of strings ({accepted(get_args(annotation)[0], ())} each)"
    if origin is dict:
        value = get_args(annotation)[1]
        return "a table of JSON values" if value is JsonValue else f"a table ({accepted(value, ())} per label)"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    return _scalar(annotation, metadata)


def value_types(annotation: Any) -> set[type]:
    """The Python types a key's values can have, ``None`` aside; containers without what is in them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return value_types(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return {found for branch in get_args(annotation) for found in value_types(branch)}
    if origin is Literal:
        return {type(choice) for choice in get_args(annotation)}
    return set() if annotation is types.NoneType else {origin or annotation}


def _flatten(metadata: Sequence[Any]) -> list[Any]:
    """``Field(ge=1)`` inside ``Annotated`` carries its constraints in a FieldInfo."""
    flat: list[Any] = []
    for item in metadata:
        flat.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return flat


def _scalar(annotation: Any, metadata: Sequence[Any]) -> str:
    if annotation is bool:
        return "true or false"
    if annotation is Path:
        return "a path"
    if annotation in (str, SecretStr):
        pattern = next((found for item in metadata if (found := getattr(item, "pattern", None))), None)
        if pattern is not None:  # the schema has two
            return "64 hexadecimal digits" if pattern == SHA256_PATTERN else "an http:// or https:// URL"
        return "a non-empty string" if any(isinstance(item, at.MinLen) for item in metadata) else "a string"
    noun = {int: "an integer", float: "a number"}[annotation]
    low = next((item.ge for item in metadata if isinstance(item, at.Ge)), None)
    high = next((item.le for item in metadata if isinstance(item, at.Le)), None)
    multiple = next((f", a multiple of {item.multiple_of}" for item in metadata if isinstance(item, at.MultipleOf)), "")
    return f"{noun} in {low}..{high}{multiple}"


def plain(value: Any) -> Any:
    """A validated value as TOML types: secrets redacted, paths as text, models and tuples as tables and arrays."""
    if isinstance(value, SecretStr):
        return REDACTED
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, BaseModel):
        return {name: plain(item) for name, item in value if item is not None}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def toml_text(value: Any) -> str:
    """A value as TOML source on one line."""
    value = plain(value)
    if isinstance(value, dict):
        pairs = (f"{toml_key(name)} = {toml_text(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def value_text(value: Any) -> str:
    """The value of a key for a message: TOML source, or "unset"."""
    return "unset" if value is None else toml_text(value)


def toml_key(name: str) -> str:
    """A key as TOML source, quoted where needed."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def shown(value: Any, secret: bool) -> str:
    """A rejected raw value for a message: bounded, redacted if secret."""
    if secret:
        return REDACTED
    text = toml_text(value)
    kind: dict[type, str] = {str: " (a string)", list: " (an array)", dict: " (a table)"}
    if len(text) > _MAX_SHOWN_CHARS:
        text = f"{text[:_MAX_SHOWN_CHARS]}…"
    return text + kind.get(type(value), "")
