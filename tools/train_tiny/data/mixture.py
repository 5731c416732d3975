"""Puts exchanges of several families into one conversation, and says how the mixture changes during training."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tools.train_tiny.data.arithmetic import arithmetic
from tools.train_tiny.data.base import Exchange, Message, Source, Tool
from tools.train_tiny.data.copying import copying
from tools.train_tiny.data.recall import FILLER_DENSITY, filler_lines, key_value, needle
from tools.train_tiny.data.render import Conversation, answer_text
from tools.train_tiny.data.smalltalk import smalltalk
from tools.train_tiny.data.tool_calls import tool_call
from tools.train_tiny.data.tool_results import tool_chain, tool_lookup, tool_result

T = TypeVar("T")

TEXT = "text"
MISSES = 6
"""How many exchanges that do not fit are tried before a conversation is closed."""

LONG = 8000
"""Characters from which a conversation is a long one."""

SLACK = 1.15
"""How far an exchange may overrun the room that is left; rows that end up too long are made anew."""

LONG_FAMILIES = ("key-value", "needle")
TOOL_EXCHANGES: dict[Callable[[Source], Exchange], float] = {
    tool_call: 0.6,
    tool_result: 0.17,
    tool_lookup: 0.15,
    tool_chain: 0.08,
}
SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are a helpful assistant.",
    "You are ninfer-tiny.",
    "Be brief.",
    "Answer in one short sentence.",
    "You are a coding agent. Use the tools.",
    "You are a friendly assistant. Use tools when they help.",
)


@dataclass(frozen=True)
class Stage:
    """A part of training: up to which progress, how many words, and the weights of row lengths and families."""

    until: float
    vocabulary: int
    lengths: Mapping[int, float]
    families: Mapping[str, float]


_START = {"key-value": 4.0, "copy": 3.0, "needle": 0.5, "tools": 1.0, "small talk": 0.7, "arithmetic": 0.7, TEXT: 0.3}
_WIDE = {"key-value": 2.0, "copy": 1.3, "needle": 1.2, "tools": 3.5, "small talk": 1.2, "arithmetic": 1.4, TEXT: 0.9}
_LAST = {"key-value": 1.6, "copy": 1.0, "needle": 1.4, "tools": 3.8, "small talk": 1.2, "arithmetic": 1.4, TEXT: 0.5}

STAGES: tuple[Stage, ...] = (
    Stage(0.05, 16, {256: 1.0}, _START),
    Stage(0.12, 40, {256: 0.6, 512: 0.4}, _START),
    Stage(0.25, 100, {256: 0.25, 512: 0.4, 1024: 0.35}, _WIDE),
    Stage(0.45, 1000, {256: 0.15, 512: 0.3, 1024: 0.35, 2048: 0.2}, _WIDE),
    Stage(0.56, 1000, {256: 0.12, 512: 0.25, 1024: 0.28, 2048: 0.2, 4096: 0.15}, _WIDE),
    Stage(0.75, 1000, {256: 0.1, 512: 0.22, 1024: 0.26, 2048: 0.18, 4096: 0.12, 8192: 0.07, 16384: 0.05}, _WIDE),
    Stage(2.0, 1000, {256: 0.1, 512: 0.2, 1024: 0.26, 2048: 0.16, 4096: 0.1, 8192: 0.08, 16384: 0.1}, _LAST),
)

_REFINE = {"key-value": 1.4, "copy": 1.0, "needle": 1.1, "tools": 5.5, "small talk": 1.0, "arithmetic": 1.4, TEXT: 0.2}

REFINING: tuple[Stage, ...] = (
    Stage(0.3, 1000, {256: 0.05, 512: 0.3, 1024: 0.43, 2048: 0.22}, _REFINE),
    Stage(0.6, 1000, {256: 0.05, 512: 0.28, 1024: 0.36, 2048: 0.18, 4096: 0.07, 8192: 0.03}, _REFINE),
    Stage(2.0, 1000, {256: 0.05, 512: 0.25, 1024: 0.34, 2048: 0.16, 4096: 0.07, 8192: 0.05, 16384: 0.06}, _REFINE),
)
"""The curriculum for weights that already know all families: mostly tool calls, long rows in the last part."""


def stage_at(stages: tuple[Stage, ...], progress: float) -> Stage:
    """Returns the stage of a training progress in [0, 1]."""
    return next(stage for stage in stages if progress < stage.until)


def draw(source: Source, weights: Mapping[T, float]) -> T:
    """Draws a key with probability proportional to its weight."""
    position = source.rng.random() * sum(weights.values())
    for key, weight in weights.items():
        position -= weight
        if position < 0:
            return key
    return next(reversed(list(weights)))


def exchange(source: Source, family: str, characters: int, thinking: bool) -> Exchange:
    """Returns one exchange of a family; only copying and recall look at ``characters``."""
    builders: dict[str, Callable[[], Exchange]] = {
        "key-value": lambda: key_value(source, characters, single=source.chance(0.1)),
        "needle": lambda: needle(source, characters, single=source.chance(0.15)),
        "copy": lambda: copying(source, min(characters, 1600)),
        "small talk": lambda: smalltalk(source),
        "arithmetic": lambda: arithmetic(source, thinking),
        "tools": lambda: draw(source, TOOL_EXCHANGES)(source),
    }
    return builders[family]()


def _size(item: Exchange, thinking: bool) -> int:
    """Estimates the rendered characters of an exchange."""
    size = sum(len(json.dumps(tool)) for tool in item.tools) + len(item.system)
    for message in item.messages:
        if message["role"] == "assistant":
            size += len(answer_text(message)) + (len(message["reasoning_content"]) if thinking else 0)
        else:
            size += len(message["content"])
    return size + 36 * len(item.messages)


def assemble(
    source: Source, exchanges: list[Exchange], thinking: bool, preserve: bool, system: str = ""
) -> Conversation:
    """Joins exchanges into a conversation with one header; ``system`` is used unless an exchange brings its own."""
    messages: list[Message] = []
    tools: list[Tool] = []
    families: list[str] = []
    system = next((item.system for item in exchanges if item.system), system)
    if not system and source.chance(0.3):
        system = source.choice(SYSTEM_PROMPTS)
    if system:
        messages.append({"role": "system", "content": system})
    for item in exchanges:
        messages += item.messages
        tools += item.tools
        replies = sum(message["role"] == "assistant" for message in item.messages)
        families += [item.call_family or item.family, *[item.family] * (replies - 1)]
    return Conversation(tuple(messages), tuple(tools), tuple(families), thinking, preserve)


def converse(source: Source, stage: Stage, characters: int) -> Conversation:
    """Fills about ``characters`` with exchanges of the stage's mixture.

    Long conversations hold one recall exchange after at most four others; tool names stay unique over the conversation.
    """
    thinking, preserve = source.chance(0.5), source.chance(0.4)
    exchanges: list[Exchange] = []
    names: set[str] = set()
    weights = {name: weight for name, weight in stage.families.items() if name != TEXT}
    recall = {name: weights[name] for name in LONG_FAMILIES}
    short = {name: weight for name, weight in weights.items() if name not in LONG_FAMILIES}
    before = source.choice((0, 0, 1, 2, 4)) if characters > LONG else -1
    system = ""
    if characters > 2000 and before < 0 and source.filler and source.chance(0.12):
        system = "\n".join(filler_lines(source, source.integer(200, characters // 2)))
    room = characters - 60 - int(len(system) / FILLER_DENSITY)
    misses = 0
    while not exchanges or (room > 80 and misses < MISSES):
        first = before < 0 and not exchanges
        family = draw(source, recall if len(exchanges) == before else weights if first else short)
        item = exchange(source, family, int(room * 0.92), thinking and (preserve or not exchanges))
        used = {tool["function"]["name"] for tool in item.tools}
        size = _size(item, thinking and preserve)
        if names & used or (item.system and (exchanges or system)) or (size > room * SLACK and exchanges):
            misses += 1
            continue
        exchanges.append(item)
        names |= used
        room -= size
        misses = 0
    return assemble(source, exchanges, thinking, preserve, system)
