"""Values given as text, by environment variables and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ninferd.config.files import parse_toml
from ninferd.config.keys import ENV_PREFIX, KEYS, KeySpec, closest, hint, takes_only_text
from ninferd.config.origin import Layer, Origin, Problem
from ninferd.config.toml_lines import KeyPath

RESERVED_VARIABLES = ("NINFERD_CONFIG", "NINFERD_PROFILE")
"""Variables with the prefix that are no configuration keys: the base file and the profile."""

ARGV_REFUSAL = "not accepted on the command line, where every user can read it; use server.api_keys_file"

_BY_ENV: Mapping[str, KeySpec] = {spec.env: spec for spec in KEYS.values()}


def parse_text(spec: KeySpec, text: str) -> Any:
    """The TOML value that ``text`` means for a key; plain text stands for a string, so quotes are optional.

    A text that fits no type of the key is returned as a string, for validation to refuse.
    """
    try:
        document = parse_toml(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = document["value"]
    if document.keys() != {"value"} or (takes_only_text(spec) and not isinstance(value, str)):
        return text
    return value


def environment_layer(env: Mapping[str, str]) -> tuple[Layer, list[Problem]]:
    """Every ``NINFERD_<GROUP>_<NAME>`` variable, and the ones that cannot be assigned."""
    layer = _TextLayer(Origin("environment", "environment"))
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in RESERVED_VARIABLES:
            continue
        if spec := _BY_ENV.get(name):
            layer.assign(spec, env[name], Origin("environment", name))
        else:
            known = closest(name, [*_BY_ENV, *RESERVED_VARIABLES])
            layer.refuse(name, None, "unknown variable" + (f"; did you mean {known}?" if known else ""))
    return layer.finished()


def override_layer(overrides: Iterable[tuple[str, str]]) -> tuple[Layer, list[Problem]]:
    """``(key, text)`` pairs of the command line, of which a later one wins, and the ones that cannot be assigned."""
    origin = Origin("command line", "command line")
    layer = _TextLayer(origin)
    for name, text in overrides:
        spec = KEYS.get(name)
        if spec is None:
            layer.refuse(str(origin), name, f"unknown key{hint(name)}")
        elif spec.secret:
            layer.refuse(str(origin), name, ARGV_REFUSAL)
        else:
            layer.assign(spec, text, origin)
    return layer.finished()


class _TextLayer:
    """A layer in the making."""

    def __init__(self, fallback: Origin) -> None:
        self._tree: dict[str, Any] = {}
        self._origins: dict[KeyPath, Origin] = {}
        self._problems: list[Problem] = []
        self._fallback = fallback

    def assign(self, spec: KeySpec, text: str, origin: Origin) -> None:
        *tables, last = spec.path
        node = self._tree
        for table in tables:
            node = node.setdefault(table, {})
        node[last] = parse_text(spec, text)
        for length in range(1, len(spec.path) + 1):
            self._origins[spec.path[:length]] = origin

    def refuse(self, where: str, key: str | None, reason: str) -> None:
        self._problems.append(Problem(where, key, reason))

    def finished(self) -> tuple[Layer, list[Problem]]:
        return Layer(self._tree, self._origins, self._fallback), self._problems
