"""Types of declared tool parameters, and the JSON form of the text a model wrote for one (serving §5.3)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

FORMAT_WHITESPACE = " \t\r\n"
_TYPE_NAMES = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_NUMBER = re.compile(r"-?(?P<whole>\d+)(?:\.(?P<fraction>\d+))?(?:[eE](?P<exponent>[+-]?\d+))?")
_MAX_SCHEMA_DEPTH = 32

Types = frozenset[str] | None
"""The admitted JSON types of one parameter; None is untyped."""


@dataclass(frozen=True)
class ToolContract:
    """Declared parameters of one tool. ``typed`` is False when two declarations of its name disagree."""

    parameters: Mapping[str, Types] = field(default_factory=dict)
    typed: bool = True


@dataclass(frozen=True)
class ArgumentText:
    """``json`` is the text to emit, None when the parameter is omitted."""

    json: str | None
    mismatch: bool = False


def contracts_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, ToolContract]:
    """Contracts by name of ``{"type": "function", "function": {"name", "parameters"?}}`` definitions."""
    contracts: dict[str, ToolContract] = {}
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        declared = properties if isinstance(properties, Mapping) else {}
        contract = ToolContract({name: types_of(value) for name, value in declared.items()})
        known = contracts.setdefault(function["name"], contract)
        if known != contract:
            contracts[function["name"]] = ToolContract(typed=False)
    return contracts


def types_of(schema: object, depth: int = 0) -> Types:
    """The set of JSON types that a property schema admits, or None when it does not say."""
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return None
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if names and all(isinstance(name, str) and name in _TYPE_NAMES for name in names):
            return frozenset(names)
        return None
    unions = [schema[key] for key in ("anyOf", "oneOf") if key in schema]
    if len(unions) != 1 or not isinstance(unions[0], list) or not unions[0]:
        return None
    admitted: frozenset[str] = frozenset()
    for branch in unions[0]:
        branch_types = types_of(branch, depth + 1)
        if branch_types is None:
            return None
        admitted |= branch_types
    return admitted


def argument_text(raw: str, contract: ToolContract, name: str) -> ArgumentText:
    """JSON text for the value ``raw`` of parameter ``name``, exactly as it stood between its tags."""
    types = contract.parameters.get(name)
    if types is None:
        undeclared = contract.typed and name not in contract.parameters
        return ArgumentText(_untyped(raw), mismatch=undeclared)
    framed = _remove_framing(raw)
    if "string" in types:
        return ArgumentText(json_string(framed))
    text = framed.strip(FORMAT_WHITESPACE)
    if not text:
        return ArgumentText(None)
    admitted = _types_of_json(text)
    if admitted is not None:
        return ArgumentText(text, mismatch=not admitted & types)
    if "boolean" in types and text.lower() in ("true", "false"):
        return ArgumentText(text.lower())
    return ArgumentText(json_string(framed), mismatch=True)


def json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _untyped(raw: str) -> str:
    text = raw.strip(FORMAT_WHITESPACE)
    return text if _types_of_json(text) is not None else json_string(text)


def _remove_framing(raw: str) -> str:
    """Without one newline (LF or CRLF) at each end: the template writes the value on lines of its own."""
    if raw.startswith("\r\n"):
        raw = raw[2:]
    elif raw.startswith("\n"):
        raw = raw[1:]
    if raw.endswith("\r\n"):
        return raw[:-2]
    return raw.removesuffix("\n")


class _Number(str):
    """The lexeme of a JSON number; never a float, which would lose digits."""

    __slots__ = ()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _types_of_json(text: str) -> frozenset[str] | None:
    """The type names that the JSON value satisfies, or None when the text is not JSON."""
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, _Number):
        return frozenset({"number", "integer"} if is_integer_lexeme(value) else {"number"})
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"array" if isinstance(value, list) else "object"})


def is_integer_lexeme(lexeme: str) -> bool:
    """Whether a JSON number is mathematically an integer: ``7.0`` and ``100e-2`` are, ``1e-1`` is not."""
    match = _NUMBER.fullmatch(lexeme)
    if match is None:
        raise ValueError(f"not a JSON number: {lexeme!r}")
    fraction = match["fraction"] or ""
    digits = (match["whole"] + fraction).lstrip("0")
    if not digits:
        return True
    trailing_zeros = len(digits) - len(digits.rstrip("0"))
    exponent = match["exponent"] or "0"
    magnitude = exponent.lstrip("+-0")
    if len(magnitude) > 18:  # beyond any run of zeros that fits in memory
        return not exponent.startswith("-")
    return trailing_zeros + int(exponent) - len(fraction) >= 0
