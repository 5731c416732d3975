"""Checking one layer against the schema, with a place and a reason for every fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ninferd.config.describe import shown
from ninferd.config.keys import KEYS, KeySpec, hint, table_hint
from ninferd.config.origin import Layer, Problem
from ninferd.config.schema import Settings
from ninferd.config.toml_lines import KeyPath


def layer_problems(layer: Layer) -> list[Problem]:
    """Unknown keys, wrong types and values out of range, each once."""
    try:
        Settings.from_layers([layer.tree])
    except ValidationError as error:
        placed = dict.fromkeys(_problems(layer, error))  # a union reports once per branch
        return [problem for _, problem in sorted(placed, key=lambda item: item[0])]
    return []


def _problems(layer: Layer, error: ValidationError) -> Iterator[tuple[int, Problem]]:
    """Line and problem."""
    for details in error.errors():
        if details["type"] == "missing":  # a layer need not be complete
            continue
        path = details["loc"]
        origin = layer.nearest_origin(path)
        spec = _spec_at(path)
        if spec is not None:
            reason = f"expected {spec.accepted}, got {shown(_value_at(layer.tree, spec), spec.secret)}"
            problem = Problem(str(origin), spec.name, reason)
        else:
            problem = Problem(str(origin), ".".join(map(str, path)), _structural_reason(details))
        yield origin.line or 0, problem


def _structural_reason(details: ErrorDetails) -> str:
    """Of a fault outside every key: something unknown, or a value where a table belongs."""
    path = ".".join(map(str, details["loc"]))
    if details["type"] != "extra_forbidden":
        return "expected a table"
    if path == "profile":
        return "profile is chosen in the base file only"
    if path == "extends":
        return "only a profile extends another one"
    if isinstance(details["input"], dict):
        return f"unknown table{table_hint(path)}"
    return f"unknown key{hint(path)}"


def _spec_at(path: KeyPath) -> KeySpec | None:
    names = [str(part) for part in path]
    specs = (KEYS.get(".".join(names[:length])) for length in range(len(names), 0, -1))
    return next((spec for spec in specs if spec is not None), None)


def _value_at(tree: Mapping[str, Any], spec: KeySpec) -> Any:
    value: Any = tree
    for part in spec.path:
        value = value[part]
    return value
