"""A conversation as every protocol hands it to the chat layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

JsonObject = Mapping[str, Any]


@dataclass(frozen=True)
class PastToolCall:
    """A call in the history; ``arguments`` is the JSON text exactly as the client sent it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[PastToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True)
class ThinkingOptions:
    """What the client asked for; None means not given."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    effort: ReasoningEffort | None = None


@dataclass(frozen=True)
class Conversation:
    """Input of one generation.

    ``tools`` are all declared tools as received (``{"type": "function", "function": {...}}``, member order kept); the
    template shows them all, so that restricting them leaves the prompt as it was. ``callable_tools`` names those that
    may be called in this answer. ``forced_call`` seeds the answer with a tool-call opener: the name of one tool, or
    ``""`` for any of them.
    """

    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    callable_tools: frozenset[str] = frozenset()
    thinking: ThinkingOptions = ThinkingOptions()
    template_kwargs: JsonObject = field(default_factory=dict)
    forced_call: str | None = None

    @property
    def keeps_special_text(self) -> bool:
        """Whether special tokens in the output stay visible as text, which leaked-marker handling needs."""
        return bool(self.callable_tools) or any(message.tool_calls for message in self.messages)
