"""Variables of the chat template: the client's options, the server's defaults, and what contradicts what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from ninferd.chat.conversation import Conversation, ReasoningEffort
from ninferd.chat.errors import PromptError, TemplateOptionConflictError
from ninferd.config.schema import Settings

RESERVED_VARIABLES = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "sep_token",
        "cls_token",
        "mask_token",
        "additional_special_tokens",
    }
)
_BOOLEAN_OPTIONS = ("enable_thinking", "preserve_thinking", "add_vision_id")
_EFFORTS: tuple[str, ...] = get_args(ReasoningEffort)

# Templates of the family know low, medium and xhigh.
_TEMPLATE_EFFORT = {"minimal": "low", "high": "xhigh", "max": "xhigh"}


_FIELD = "chat_template_kwargs"

T = TypeVar("T")


@dataclass(frozen=True)
class TemplateOptions:
    """Resolved options; ``variables`` go to the template beside messages and tools."""

    enable_thinking: bool
    variables: Mapping[str, Any]


def resolve_options(conversation: Conversation, settings: Settings, reserved: frozenset[str]) -> TemplateOptions:
    """Merge typed fields, ``chat_template_kwargs`` and defaults (``template.kwargs``, then ``thinking.*``).

    ``reserved``: names of the template's own constants. Raises PromptError for a reserved or mistyped name and
    TemplateOptionConflictError for one option given twice by the client with different values.
    """
    check_kwargs(conversation.template_kwargs, reserved)
    given, defaults = dict(conversation.template_kwargs), dict(settings.template.kwargs)
    asked = conversation.thinking
    thinking = _agreeing("enable_thinking", asked.enable_thinking, given.pop("enable_thinking", None))
    preserve = _agreeing("preserve_thinking", asked.preserve_thinking, given.pop("preserve_thinking", None))
    effort: str | None = _agreeing("reasoning_effort", asked.effort, given.pop("reasoning_effort", None))
    if effort is not None:
        thinking = _agreeing("enable_thinking", thinking, effort != "none")
    thinking = _first(thinking, defaults.pop("enable_thinking", None), settings.thinking.enabled)
    preserve = _first(preserve, defaults.pop("preserve_thinking", None), settings.thinking.preserve)
    effort = _first(effort, defaults.pop("reasoning_effort", None), settings.thinking.default_effort)
    if conversation.forced_call is not None:
        thinking = False
    variables = {**defaults, **given, "enable_thinking": thinking, "preserve_thinking": preserve}
    if thinking and effort not in (None, "none"):
        variables["reasoning_effort"] = _TEMPLATE_EFFORT.get(effort, effort)
    return TemplateOptions(thinking, variables)


def check_kwargs(kwargs: Mapping[str, Any], reserved: frozenset[str]) -> None:
    """Raise PromptError for a name that the server sets itself, and for a known option of the wrong type."""
    for name in kwargs:
        if name in RESERVED_VARIABLES or name in reserved:
            raise PromptError(f"chat_template_kwargs: {name!r} is set by the server and cannot be given", _FIELD)
    for name in _BOOLEAN_OPTIONS:
        if kwargs.get(name) is not None and not isinstance(kwargs[name], bool):
            raise PromptError(f"chat_template_kwargs: {name} must be true or false", _FIELD)
    effort = kwargs.get("reasoning_effort")
    if effort is not None and effort not in _EFFORTS:
        raise PromptError(f"chat_template_kwargs: reasoning_effort must be one of {', '.join(_EFFORTS)}", _FIELD)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _agreeing(option: str, first: T | None, second: T | None) -> T | None:
    if first is not None and second is not None and first != second:
        raise TemplateOptionConflictError(
            f"{option} is given twice with different values: {first} and {second}", option
        )
    return second if first is None else first
