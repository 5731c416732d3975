"""Tools of a chat request: which are shown, which may be called, and whether one must be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninferd.api.chat_fields import ChatFields
from ninferd.api.compat import Leniency
from ninferd.api.errors import ApiError, bad_request

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolUse:
    """``forced_call``: name of the tool that must be called, ``""`` for any, None when none must be."""

    declared: tuple[Mapping[str, Any], ...]
    callable: frozenset[str]
    forced_call: str | None
    first_call_only: bool


@dataclass(frozen=True)
class _Choice:
    allowed: frozenset[str]
    forced_call: str | None = None


def tool_use(fields: ChatFields, leniency: Leniency) -> ToolUse:
    """Validated tools and choice; raises ApiError."""
    declared = tuple(_declaration(tool, index, leniency) for index, tool in enumerate(fields.tools or ()))
    names = frozenset(tool["function"]["name"] for tool in declared)
    choice = _choice(fields.tool_choice, names, leniency)
    single = fields.parallel_tool_calls is False and bool(choice.allowed)
    if single and not leniency.lenient:
        raise bad_request(
            "parallel_tool_calls: false cannot be guaranteed",
            "parallel_tool_calls",
            "parallel_tool_calls_not_supported",
        )
    return ToolUse(declared, choice.allowed, choice.forced_call, first_call_only=single)


def _declaration(tool: Mapping[str, Any], index: int, leniency: Leniency) -> Mapping[str, Any]:
    place = f"tools[{index}]"
    if tool.get("type") != "function":
        raise bad_request(f"{place}.type: only function is supported", "tools", "tool_type_not_supported")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise bad_request(f"{place}.function: an object is needed", "tools")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise bad_request(f"{place}.function.name: 1 to 64 letters, digits, _ or - are needed", "tools")
    for member, kind, wanted in (("description", str, "a string"), ("parameters", Mapping, "an object")):
        if function.get(member) is not None and not isinstance(function[member], kind):
            raise bad_request(f"{place}.function.{member}: {wanted} is needed", "tools")
    strict = function.get("strict")
    if strict is None or strict is False:
        return tool
    if strict is not True:
        raise bad_request(f"{place}.function.strict: true or false is needed", "tools")
    if not leniency.ignore("tools.function.strict"):
        raise bad_request(f"{place}.function.strict: schemas cannot be enforced", "tools", "strict_tools_not_supported")
    return {**tool, "function": {**function, "strict": False}}


def _choice(choice: Any, declared: frozenset[str], leniency: Leniency) -> _Choice:
    if choice is None or choice == "auto":
        return _Choice(declared)
    if choice == "none":
        return _Choice(frozenset())
    if choice == "required":
        return _forced("", declared, leniency)
    if not isinstance(choice, Mapping):
        raise bad_request('tool_choice: "auto", "none", "required" or an object is needed', "tool_choice")
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _allowed_tools(choice, declared, leniency)
    if kind == "function":
        return _forced(_named(choice.get("function"), declared), declared, leniency)
    raise bad_request(f"tool_choice.type: {kind!r} is not supported", "tool_choice", "tool_type_not_supported")


def _allowed_tools(choice: Mapping[str, Any], declared: frozenset[str], leniency: Leniency) -> _Choice:
    body = choice.get("allowed_tools", choice)  # nested, or flat beside the type
    tools = body.get("tools") if isinstance(body, Mapping) else None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise bad_request("tool_choice.allowed_tools.tools: an array is needed", "tool_choice")
    allowed = frozenset(
        _named(tool.get("function", tool) if isinstance(tool, Mapping) else None, declared) for tool in tools
    )
    mode = body.get("mode")
    if mode == "required":
        return _forced("", allowed, leniency)
    if mode != "auto":
        raise bad_request("tool_choice.allowed_tools.mode: auto or required is needed", "tool_choice")
    return _Choice(allowed)


def _named(function: Any, declared: frozenset[str]) -> str:
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise bad_request("tool_choice: the name of a function is needed", "tool_choice")
    if name not in declared:
        raise bad_request(f"tool_choice: {name!r} is not among the tools", "tool_choice")
    return name


def _forced(name: str, allowed: frozenset[str], leniency: Leniency) -> _Choice:
    if not leniency.lenient:
        raise _not_guaranteed()
    if not allowed:
        raise bad_request("tool_choice: a call is required but there is no tool", "tool_choice")
    if len(allowed) == 1:  # the only tool need not be guessed by the model
        (name,) = allowed
    return _Choice(frozenset({name}) if name else allowed, forced_call=name)


def _not_guaranteed() -> ApiError:
    return bad_request("tool_choice: a tool call cannot be guaranteed", "tool_choice", "tool_choice_not_supported")
