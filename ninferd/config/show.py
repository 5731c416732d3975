"""The effective configuration as text: TOML or JSON, with or without where each value comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ninferd.config.describe import plain, toml_key, toml_text
from ninferd.config.keys import KEYS, KeySpec, hint
from ninferd.config.layers import ResolvedConfig
from ninferd.errors import InputError


def select(name: str | None) -> list[KeySpec]:
    """All keys, those below a table, or one key. Raises InputError for an unknown name."""
    specs = [spec for spec in KEYS.values() if name is None or spec.name == name or spec.name.startswith(f"{name}.")]
    if not specs:
        raise InputError(f"{name}: unknown key{hint(name or '')}")
    return specs


def as_toml(resolved: ResolvedConfig, specs: list[KeySpec], *, origin: bool) -> str:
    """A TOML document that loads to the same settings, secrets aside; unset keys are comments."""
    lines: list[str] = []
    table: tuple[str, ...] = ()
    for spec in specs:
        if spec.path[:-1] != table:
            table = spec.path[:-1]
            lines += [*([""] if lines else []), f"[{'.'.join(table)}]"]
        lines.append(_toml_line(resolved, spec, origin=origin))
    return "\n".join(lines) + "\n"


def _toml_line(resolved: ResolvedConfig, spec: KeySpec, *, origin: bool) -> str:
    value = spec.value(resolved.settings)
    note = f"  # {_origin_text(resolved, spec)}; reload: {spec.reload}" if origin else ""
    if value is None:
        return f"# {toml_key(spec.path[-1])} is unset{note}"
    return f"{toml_key(spec.path[-1])} = {toml_text(value)}{note}"


def _origin_text(resolved: ResolvedConfig, spec: KeySpec) -> str:
    found = resolved.origin(spec.name)
    return found.layer if str(found) in (found.layer, "built-in") else f"{found.layer} {found}"


def as_json(resolved: ResolvedConfig, specs: list[KeySpec], *, origin: bool) -> str:
    """Nested objects of values, or of ``{value, layer, file, line, reload}``; unset keys are null."""
    root: dict[str, Any] = {}
    for spec in specs:
        node = root
        for table in spec.path[:-1]:
            node = node.setdefault(table, {})
        value = plain(spec.value(resolved.settings))
        node[spec.path[-1]] = dict(_traced(resolved, spec, value)) if origin else value
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _traced(resolved: ResolvedConfig, spec: KeySpec, value: Any) -> Iterator[tuple[str, Any]]:
    found = resolved.origin(spec.name)
    yield "value", value
    yield "layer", found.layer
    yield "file", found.file
    yield "line", found.line
    yield "reload", spec.reload
