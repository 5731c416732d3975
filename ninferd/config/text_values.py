"""Values given as text, by environment variables and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ninferd.config.files import parse_toml
from ninferd.config.keys import ENV_PREFIX, KEYS, KeySpec, closest, hint, takes_only_text
from ninferd.config.origin import Origin, Problem
from ninferd.config.toml_lines import KeyPath

RESERVED_VARIABLES = ("NINFERD_CONFIG", "NINFERD_PROFILE")
"""Variables with the prefix that are no configuration keys: the base file and the profile."""

ARGV_REFUSAL = "not accepted on the command line, where every user can read it; use server.api_keys_file"

_BY_ENV: Mapping[str, KeySpec] = {spec.env: spec for spec in KEYS.values()}

Assigned = tuple[dict[str, Any], dict[KeyPath, Origin], list[Problem]]
"""A tree of values, the origin of each of its nodes, and what could not be assigned."""


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


def from_environment(env: Mapping[str, str]) -> Assigned:
    """Every ``NINFERD_<GROUP>_<NAME>`` variable."""
    tree: dict[str, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    problems: list[Problem] = []
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in RESERVED_VARIABLES:
            continue
        spec = _BY_ENV.get(name)
        if spec is None:
            known = closest(name, [*_BY_ENV, *RESERVED_VARIABLES])
            problems.append(Problem(name, None, "unknown variable" + (f"; did you mean {known}?" if known else "")))
        else:
            _assign(tree, origins, spec, env[name], Origin("environment", name))
    return tree, origins, problems


def from_overrides(overrides: Iterable[tuple[str, str]]) -> Assigned:
    """``(key, text)`` pairs of the command line; a later one wins."""
    tree: dict[str, Any] = {}
    origins: dict[KeyPath, Origin] = {}
    problems: list[Problem] = []
    origin = Origin("command line", "command line")
    for name, text in overrides:
        spec = KEYS.get(name)
        if spec is None:
            problems.append(Problem(str(origin), name, "unknown key" + hint(name)))
        elif spec.secret:
            problems.append(Problem(str(origin), name, ARGV_REFUSAL))
        else:
            _assign(tree, origins, spec, text, origin)
    return tree, origins, problems


def _assign(tree: dict[str, Any], origins: dict[KeyPath, Origin], spec: KeySpec, text: str, origin: Origin) -> None:
    *tables, last = spec.path
    node = tree
    for table in tables:
        node = node.setdefault(table, {})
    node[last] = parse_text(spec, text)
    for length in range(1, len(spec.path) + 1):
        origins[spec.path[:length]] = origin
