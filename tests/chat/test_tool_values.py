"""The coercion table of serving §5.3; row numbers are those of its case table §5.7."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat.tool_values import (
    ArgumentText,
    ToolContract,
    argument_text,
    contracts_of,
    is_integer_lexeme,
    types_of,
)

CFG: dict[str, Any] = {
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "a": {"type": "array"},
    "z": {"type": ["integer", "null"]},
    "s": {"type": "string"},
    "u": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "m": {"type": ["string", "number"]},
    "w": {},
}


def tool(name: str, properties: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


CONTRACT = contracts_of([tool("cfg", CFG)])["cfg"]


@pytest.mark.parametrize(
    ("name", "raw", "json", "mismatch"),
    [
        pytest.param("s", "\n  a\n\n", '"  a\\n"', False, id="5 one newline each side is framing"),
        pytest.param("s", "\r\nls\r\n", '"ls"', False, id="6 CRLF"),
        pytest.param("s", "\n42\n", '"42"', False, id="7 a number for a string"),
        pytest.param("n", "\n7\n", "7", False, id="8"),
        pytest.param("n", "7.0", "7.0", False, id="9 lexeme kept"),
        pytest.param("n", "7.5", "7.5", True, id="10"),
        pytest.param("n", "100e-2", "100e-2", False, id="11"),
        pytest.param("x", "8", "8", False, id="12 an integer is a number"),
        pytest.param("b", "True", "true", False, id="13"),
        pytest.param("b", "yes", '"yes"', True, id="14"),
        pytest.param("b", "1", "1", True, id="15"),
        pytest.param("o", '{"k": [1,2]}', '{"k": [1,2]}', False, id="16"),
        pytest.param("o", "{'k': True}", "\"{'k': True}\"", True, id="17"),
        pytest.param("o", "[]", "[]", True, id="18"),
        pytest.param("z", "null", "null", False, id="19"),
        pytest.param("b", "\n\n", None, False, id="20 omitted"),
        pytest.param("s", "\n\n", '""', False, id="21"),
        pytest.param("u", "False", "false", False, id="22"),
        pytest.param("m", "7", '"7"', False, id="23"),
        pytest.param("w", '\n{"a":1}\n', '{"a":1}', False, id="24"),
        pytest.param("w", " hello ", '"hello"', False, id="25"),
        pytest.param("w", "  ", '""', False, id="untyped empty"),
        pytest.param("q", "5", "5", True, id="26 undeclared"),
        pytest.param("x", "NaN", '"NaN"', True, id="27"),
        pytest.param("s", '"q"', '"\\"q\\""', False, id="28"),
        pytest.param("s", 'écho "ok" \\ ✓', '"écho \\"ok\\" \\\\ ✓"', False, id="29"),
        pytest.param("n", "5s", '"5s"', True, id="30"),
        pytest.param("n", "9007199254740992.5", "9007199254740992.5", True, id="no float rounding"),
        pytest.param("n", '"x"', '"x"', True, id="a JSON string for an integer"),
        pytest.param("a", "[" * 100_000, '"' + "[" * 100_000 + '"', True, id="nesting beyond the parser"),
        pytest.param("n", "9" * 5000, "9" * 5000, False, id="digits beyond int conversion"),
    ],
)
def test_value(name: str, raw: str, json: str | None, mismatch: bool) -> None:
    assert argument_text(raw, CONTRACT, name) == ArgumentText(json, mismatch)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "int"}, None),
        ({"type": []}, None),
        ({"type": ["string", 1]}, None),
        ({"oneOf": [{"type": "string"}, {"anyOf": [{"type": "array"}]}]}, {"string", "array"}),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}, None),
        ({"anyOf": []}, None),
        ({"enum": ["a"]}, None),
        ("string", None),
    ],
)
def test_types_of_schema(schema: object, types: set[str] | None) -> None:
    assert types_of(schema) == types


def test_endless_schema_is_untyped() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema]
    assert types_of(schema) is None


def test_conflicting_declarations_make_the_tool_untyped() -> None:
    contracts = contracts_of([tool("f", {"k": {"type": "string"}}), tool("f", {"k": {"type": "integer"}})])
    assert argument_text("5", contracts["f"], "k") == ArgumentText("5", mismatch=False)


def test_identical_declarations_agree() -> None:
    declared = tool("f", {"k": {"type": "string"}})
    assert contracts_of([declared, declared])["f"] == ToolContract({"k": frozenset({"string"})})


@pytest.mark.parametrize("parameters", [None, {}, {"properties": None}, {"properties": []}])
def test_tools_without_properties(parameters: object) -> None:
    contracts = contracts_of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert contracts == {"f": ToolContract()}


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**4), st.booleans(), st.integers(-12, 12))
def test_integer_lexeme_is_exact(whole: int, fraction: int, has_fraction: bool, exponent: int) -> None:
    lexeme = f"{whole}{f'.{fraction:04d}' if has_fraction else ''}e{exponent}"
    mantissa = Fraction(lexeme.partition("e")[0])
    assert is_integer_lexeme(lexeme) is ((mantissa * Fraction(10) ** exponent).denominator == 1)


@pytest.mark.parametrize(
    ("lexeme", "is_integer"),
    [
        ("-0.0", True),
        ("1e-1", False),
        ("0e-99999999999999999999", True),
        ("1e99999999999999999999", True),
        ("1e-99999999999999999999", False),
        ("10e-01", True),
    ],
)
def test_extreme_lexemes(lexeme: str, is_integer: bool) -> None:
    assert is_integer_lexeme(lexeme) is is_integer
