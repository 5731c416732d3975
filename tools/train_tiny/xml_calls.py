"""Strict reader of the XML tool-call format, to judge whether a reply is well formed."""

import json
import re
from typing import Any

from tools.train_tiny.data.base import Tool

_BLOCK = re.compile(
    r"<tool_call>\n<function=([A-Za-z0-9_-]+)>\n((?:<parameter=[^>\n]+>\n.*?\n</parameter>\n)*)</function>\n</tool_call>",
    re.S,
)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.S)
_CHECKS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _fits(text: str, schema: dict[str, Any]) -> bool:
    if schema["type"] == "string":
        return "enum" not in schema or text in schema["enum"]
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, _CHECKS[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))


def parse_calls(reply: str) -> list[tuple[str, dict[str, str]]] | None:
    """Returns the (name, parameter texts) of each call if the reply is nothing but calls, else ``None``."""
    blocks = list(_BLOCK.finditer(reply))
    if not blocks or "\n".join(block.group(0) for block in blocks) != reply:
        return None
    return [(block.group(1), dict(_PARAMETER.findall(block.group(2)))) for block in blocks]


def same_reply(reply: str, reference: str) -> bool:
    """Says whether two replies have the same text or the same calls; the order of a call's parameters is free."""
    calls = parse_calls(reply)
    return reply == reference or (calls is not None and calls == parse_calls(reference))


def well_formed(reply: str, tools: tuple[Tool, ...]) -> bool:
    """Says whether a reply is nothing but calls of offered tools with known, fitting and all required arguments."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, arguments in parse_calls(reply) or [("", {})]:
        schema = schemas.get(name)
        if schema is None or not set(schema.get("required", ())) <= set(arguments):
            return False
        properties = schema["properties"]
        if any(key not in properties or not _fits(text, properties[key]) for key, text in arguments.items()):
            return False
    return True
