"""Held-out evaluation cases: a prompt, the tools it offers, and the reply that is right."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tools.train_tiny.data.arithmetic import arithmetic
from tools.train_tiny.data.base import Exchange, Message, Source, Tool
from tools.train_tiny.data.copying import copying
from tools.train_tiny.data.mixture import assemble
from tools.train_tiny.data.recall import key_value, needle
from tools.train_tiny.data.render import answer_text
from tools.train_tiny.data.smalltalk import smalltalk
from tools.train_tiny.data.tool_calls import tool_call
from tools.train_tiny.data.tool_results import tool_chain, tool_lookup, tool_result

RECALL_LENGTHS: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
TOOL_FAMILIES: tuple[str, ...] = ("tool-single", "tool-nested", "tool-parallel")


@dataclass(frozen=True)
class Case:
    """One prompt; ``reference`` is the reply's text after any reasoning block."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    thinking: bool
    reference: str


def make_case(source: Source, exchange: Exchange, thinking: bool) -> Case:
    """Cuts the last reply off an exchange; earlier reasoning is kept only when thinking."""
    conversation = assemble(source, [exchange], thinking, preserve=False)
    *given, last = conversation.messages
    if not thinking:
        given = [
            {**message, "reasoning_content": ""} if message["role"] == "assistant" else message for message in given
        ]
    return Case(tuple(given), conversation.tools, thinking, answer_text(last))


def short_cases(source: Source, count: int, thinking: bool) -> dict[str, list[Case]]:
    """Returns ``count`` cases of every short family by label."""
    builders: dict[str, Callable[[], Exchange]] = {
        "tool-result": lambda: source.choice((tool_result, tool_lookup, tool_chain))(source),
        "arithmetic": lambda: arithmetic(source, thinking),
        "copy": lambda: copying(source, 700),
        "talk and little tasks": lambda: smalltalk(source),
    }
    for label in TOOL_FAMILIES:
        builders[label] = partial(_tool_call_of, source, label)
    suffix = ", thinking" if thinking else ""
    return {
        label + suffix: [make_case(source, build(), thinking) for _ in range(count)]
        for label, build in builders.items()
    }


def _tool_call_of(source: Source, family: str) -> Exchange:
    while True:
        exchange = tool_call(source)
        if exchange.family == family:
            return exchange


def recall_cases(source: Source, measure: Callable[[Case], int], length: int, count: int) -> dict[str, list[Case]]:
    """Returns key-value and needle cases whose prompts take 80 to 100 % of ``length`` tokens by ``measure``."""
    cases: dict[str, list[Case]] = {}
    for label, build in (("key-value", key_value), ("needle", needle)):
        characters, found = length * 2.5, cases.setdefault(f"{label} {length}", [])
        while len(found) < count:
            case = make_case(source, build(source, int(characters), single=True), thinking=False)
            size = measure(case)
            if size > length:
                characters *= 0.96
            elif size < 0.8 * length:
                characters *= 1.05
            else:
                found.append(case)
    return cases
