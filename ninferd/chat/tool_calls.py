"""The strict grammar of tool calls in model output (serving §5.2), and its streaming hold (§5.6).

region    = W* call (W* call)* W*
call      = "<tool_call>" W* function W* "</tool_call>"
function  = "<function=" NAME ">" W* (parameter W*)* "</function>"
parameter = "<parameter=" PNAME ">" VALUE "</parameter>"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ninferd.chat.stop import partial_suffix
from ninferd.chat.tool_values import FORMAT_WHITESPACE, ToolContract, argument_text, json_string

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_OPEN, FUNCTION_CLOSE = "<function=", "</function>"
PARAMETER_OPEN, PARAMETER_CLOSE = "<parameter=", "</parameter>"

FallbackReason = Literal[
    "malformed_structure", "duplicate_parameter", "invalid_tool_name", "undeclared_tool", "trailing_content"
]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # JSON object text


@dataclass(frozen=True)
class ParsedCalls:
    """``schema_mismatches``: values that do not fit their declared type; ``omitted``: empty typed values left out."""

    calls: tuple[ToolCall, ...]
    schema_mismatches: int
    omitted_arguments: int


class _RefusedError(Exception):
    def __init__(self, reason: FallbackReason) -> None:
        self.reason: FallbackReason = reason


class _RegionReader:
    """One pass over a region; every method advances ``position`` past what it read or raises _RefusedError."""

    def __init__(self, text: str, tools: Mapping[str, ToolContract]) -> None:
        self.text = text
        self.tools = tools
        self.position = 0
        self.mismatches = 0
        self.omitted = 0

    def region(self) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        self._skip_whitespace()
        while self.position < len(self.text):
            if calls and not self.text.startswith(CALL_OPEN, self.position):
                raise _RefusedError("trailing_content")
            calls.append(self._call())
            self._skip_whitespace()
        return tuple(calls)

    def _call(self) -> ToolCall:
        self._expect(CALL_OPEN)
        self._skip_whitespace()
        call = self._function()
        self._skip_whitespace()
        self._expect(CALL_CLOSE)
        return call

    def _function(self) -> ToolCall:
        self._expect(FUNCTION_OPEN)
        name = self._tag_rest()
        if _NAME.fullmatch(name) is None:
            raise _RefusedError("invalid_tool_name")
        contract = self.tools.get(name)
        if contract is None:
            raise _RefusedError("undeclared_tool")
        arguments: dict[str, str | None] = {}
        self._skip_whitespace()
        while not self.text.startswith(FUNCTION_CLOSE, self.position):
            self._parameter(contract, arguments)
            self._skip_whitespace()
        self._expect(FUNCTION_CLOSE)
        members = (f"{json_string(key)}:{value}" for key, value in arguments.items() if value is not None)
        return ToolCall(name, "{" + ",".join(members) + "}")

    def _parameter(self, contract: ToolContract, arguments: dict[str, str | None]) -> None:
        self._expect(PARAMETER_OPEN)
        name = self._tag_rest()
        if not name:
            raise _RefusedError("malformed_structure")
        if name in arguments:
            raise _RefusedError("duplicate_parameter")
        argument = argument_text(self._value(), contract, name)
        self.mismatches += argument.mismatch
        self.omitted += argument.json is None
        arguments[name] = argument.json

    def _value(self) -> str:
        """Text up to the close tag that matches in depth: a value may quote a whole ``<parameter=…>…</parameter>``."""
        start, depth = self.position, 1
        while True:
            close = self.text.find(PARAMETER_CLOSE, self.position)
            if close < 0:
                raise _RefusedError("malformed_structure")
            while (nested := self._opener_end(self.position, close)) >= 0:
                depth += 1
                self.position = nested
            depth -= 1
            self.position = close + len(PARAMETER_CLOSE)
            if depth == 0:
                return self.text[start:close]

    def _opener_end(self, start: int, end: int) -> int:
        """Just after the next whole ``<parameter=X>`` within [start, end), else -1; every character is read once."""
        while (opener := self.text.find(PARAMETER_OPEN, start, end)) >= 0:
            name = opener + len(PARAMETER_OPEN)
            bracket = self.text.find(">", name, end)
            if bracket != name:
                return bracket + 1 if bracket >= 0 else -1
            start = bracket + 1
        return -1

    def _tag_rest(self) -> str:
        end = self.text.find(">", self.position)
        if end < 0:
            raise _RefusedError("invalid_tool_name" if self._names_function() else "malformed_structure")
        rest = self.text[self.position : end]
        self.position = end + 1
        return rest

    def _names_function(self) -> bool:
        return self.text.endswith(FUNCTION_OPEN, 0, self.position)

    def _expect(self, literal: str) -> None:
        if not self.text.startswith(literal, self.position):
            raise _RefusedError("malformed_structure")
        self.position += len(literal)

    def _skip_whitespace(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in FORMAT_WHITESPACE:
            self.position += 1


def parse_region(text: str, tools: Mapping[str, ToolContract]) -> ParsedCalls | FallbackReason:
    """All calls of a region, or why none is accepted; a region is taken whole or not at all."""
    reader = _RegionReader(text, tools)
    try:
        calls = reader.region()
    except _RefusedError as refusal:
        return refusal.reason
    return ParsedCalls(calls, reader.mismatches, reader.omitted)


class ToolCallHold:
    """Lets answer text through and holds everything from the first ``<tool_call>`` on.

    How the text is cut into pieces does not change the result, and when the region is refused the released text is
    exactly what the model wrote.
    """

    def __init__(self, tools: Mapping[str, ToolContract], *, seed: str = "") -> None:
        """``seed``: an opener that the prompt already wrote, so the output starts inside the region."""
        self._tools = tools
        self._seed = seed
        self._held = ""
        self._region_start = 0 if seed else -1  # of the region in _held; -1 while there is none

    def push(self, text: str) -> str:
        """The text that can be shown now."""
        held = self._held + text
        if self._region_start >= 0 or not self._tools:
            self._held = held if self._tools else ""
            return "" if self._tools else text
        marker = held.find(CALL_OPEN)
        boundary = marker if marker >= 0 else len(held) - partial_suffix(held, [CALL_OPEN])
        visible = held[:boundary].rstrip(FORMAT_WHITESPACE)
        self._held = held[len(visible) :]
        if marker >= 0:
            self._region_start = marker - len(visible)
        return visible

    @property
    def region(self) -> str | None:
        """What would be parsed now, from the first marker on."""
        if self._region_start < 0:
            return None
        return self._seed + self._held[self._region_start :]

    def first_call_is_complete(self) -> bool:
        """Whether the region already is one whole call and nothing else."""
        region = self.region
        if region is None or not region.rstrip(FORMAT_WHITESPACE).endswith(CALL_CLOSE):
            return False
        return isinstance(parse_region(region, self._tools), ParsedCalls)

    def finish(self) -> tuple[str, ParsedCalls | FallbackReason | None]:
        """End of output: (text still to show, the parse of the region if there is one)."""
        held, self._held = self._held, ""
        if self._region_start < 0:
            return held, None
        region = self._seed + held[self._region_start :]
        parsed = parse_region(region, self._tools)
        return ("" if isinstance(parsed, ParsedCalls) else held), parsed
