from __future__ import annotations

from typing import Any

import pytest

from ninferd.chat.conversation import Conversation, Message, ThinkingOptions
from ninferd.chat.errors import PromptError, TemplateOptionConflictError
from ninferd.chat.options import TemplateOptions, resolve_options
from tests.support.frontends import make_settings

MESSAGES = (Message("user", "x"),)
UNASKED = ThinkingOptions()


def resolve(
    asked: ThinkingOptions = UNASKED,
    kwargs: dict[str, Any] | None = None,
    forced_call: str | None = None,
    **tables: dict[str, Any],
) -> TemplateOptions:
    conversation = Conversation(MESSAGES, thinking=asked, template_kwargs=kwargs or {}, forced_call=forced_call)
    return resolve_options(conversation, make_settings(**tables), frozenset({"eot_token"}))


def test_defaults() -> None:
    assert resolve() == TemplateOptions(True, {"enable_thinking": True, "preserve_thinking": False})
    options = resolve(thinking={"enabled": False, "preserve": True}, template={"kwargs": {"style": "short"}})
    assert options == TemplateOptions(False, {"style": "short", "enable_thinking": False, "preserve_thinking": True})


@pytest.mark.parametrize("given", ["typed", "kwargs"])
def test_both_ways_of_asking(given: str) -> None:
    asked = ThinkingOptions(False, True, None) if given == "typed" else ThinkingOptions()
    kwargs = {} if given == "typed" else {"enable_thinking": False, "preserve_thinking": True}
    assert resolve(asked, kwargs).variables == {"enable_thinking": False, "preserve_thinking": True}


@pytest.mark.parametrize(
    ("effort", "rendered"),
    [("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "xhigh"), ("xhigh", "xhigh"), ("max", "xhigh")],
)
def test_effort_is_rounded_to_what_templates_know(effort: Any, rendered: str) -> None:
    assert resolve(ThinkingOptions(effort=effort)).variables["reasoning_effort"] == rendered


def test_effort_none_turns_thinking_off() -> None:
    options = resolve(ThinkingOptions(effort="none"))
    assert options.enable_thinking is False
    assert "reasoning_effort" not in options.variables


def test_effort_turns_thinking_on_over_the_servers_default() -> None:
    assert resolve(ThinkingOptions(effort="low"), thinking={"enabled": False}).enable_thinking is True


def test_default_effort_never_turns_thinking_on() -> None:
    assert resolve(thinking={"default_effort": "high"}).variables["reasoning_effort"] == "xhigh"
    options = resolve(thinking={"default_effort": "high", "enabled": False})
    assert options.variables == {"enable_thinking": False, "preserve_thinking": False}


def test_defaults_of_the_template_table() -> None:
    kwargs = {"enable_thinking": False, "preserve_thinking": True, "reasoning_effort": "max"}
    options = resolve(template={"kwargs": kwargs})
    assert options == TemplateOptions(False, {"enable_thinking": False, "preserve_thinking": True})
    options = resolve(ThinkingOptions(True, False), template={"kwargs": kwargs})
    assert options.variables == {"enable_thinking": True, "preserve_thinking": False, "reasoning_effort": "xhigh"}


def test_forced_call_turns_thinking_off() -> None:
    assert resolve(ThinkingOptions(enable_thinking=True), forced_call="f").enable_thinking is False


def test_request_kwargs_win_over_the_servers_and_null_reaches_the_template() -> None:
    options = resolve(kwargs={"style": None}, template={"kwargs": {"style": "short", "other": 1}})
    assert (options.variables["style"], options.variables["other"]) == (None, 1)


@pytest.mark.parametrize(
    ("thinking", "kwargs", "option"),
    [
        (ThinkingOptions(enable_thinking=True), {"enable_thinking": False}, "enable_thinking"),
        (ThinkingOptions(preserve_thinking=True), {"preserve_thinking": False}, "preserve_thinking"),
        (ThinkingOptions(effort="low"), {"reasoning_effort": "high"}, "reasoning_effort"),
        (ThinkingOptions(enable_thinking=True, effort="none"), {}, "enable_thinking"),
        (ThinkingOptions(enable_thinking=False, effort="low"), {}, "enable_thinking"),
    ],
)
def test_contradictions(thinking: ThinkingOptions, kwargs: dict[str, Any], option: str) -> None:
    with pytest.raises(TemplateOptionConflictError) as caught:
        resolve(thinking, kwargs)
    assert caught.value.option == option


def test_equal_duplicates_agree() -> None:
    resolve(ThinkingOptions(True, False, "low"), {"enable_thinking": True, "reasoning_effort": "low"})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"messages": []}, "'messages' is set by the server"),
        ({"tools": None}, "'tools' is set by the server"),
        ({"bos_token": "x"}, "'bos_token' is set by the server"),
        ({"eot_token": "x"}, "'eot_token' is set by the server"),
        ({"enable_thinking": "no"}, "enable_thinking must be true or false"),
        ({"add_vision_id": 1}, "add_vision_id must be true or false"),
        ({"reasoning_effort": "huge"}, "reasoning_effort must be one of"),
        ({"reasoning_effort": []}, "reasoning_effort must be one of"),
    ],
)
def test_unusable_kwargs(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        resolve(kwargs=kwargs)
