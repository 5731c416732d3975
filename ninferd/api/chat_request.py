"""A chat request in the terms of the chat layer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ninferd.api.chat_fields import ChatFields, parse_chat_fields
from ninferd.api.chat_messages import to_messages
from ninferd.api.chat_rules import check_support, wants_json_hint
from ninferd.api.chat_tools import tool_use
from ninferd.api.compat import Leniency
from ninferd.api.errors import bad_request, model_not_found
from ninferd.chat.conversation import Conversation, Message, ThinkingOptions
from ninferd.chat.frontend import ChatFrontend
from ninferd.chat.generation import GenerationPlan
from ninferd.chat.sampling import SamplerFields
from ninferd.chat.stop import MAX_STOP_CHARS, MAX_STOP_STRINGS
from ninferd.config.schema import Settings

JSON_HINT = "Answer with one valid JSON object and nothing else."


@dataclass(frozen=True)
class StreamForm:
    """How the answer is delivered."""

    stream: bool
    include_usage: bool
    timings_per_token: bool
    return_progress: bool


@dataclass(frozen=True)
class ChatRequest:
    """``max_tokens`` is not yet clipped to the context. ``ignored``: what lenient mode let pass."""

    model: str
    conversation: Conversation
    sampler: SamplerFields
    seed: int | None
    top_logprobs: int | None
    max_tokens: int
    stop: tuple[str, ...]
    first_call_only: bool
    form: StreamForm
    ignored: tuple[str, ...]


def read_chat_request(body: bytes, settings: Settings, *, model: str, max_context: int) -> ChatRequest:
    """Validate a body; raises ApiError. ``model`` is the public name of the served model."""
    fields = parse_chat_fields(body)
    leniency = Leniency(settings.compat.mode)
    answered_as = _model_name(fields.model, model, settings)
    messages = to_messages(fields.messages, leniency)
    check_support(fields, leniency)
    tools = tool_use(fields, leniency)
    stop = _stop_strings(fields.stop, leniency)
    return ChatRequest(
        model=answered_as,
        conversation=Conversation(
            messages=_with_json_hint(messages) if wants_json_hint(fields) else messages,
            tools=tools.declared,
            callable_tools=tools.callable,
            thinking=ThinkingOptions(fields.enable_thinking, fields.preserve_thinking, fields.reasoning_effort),
            template_kwargs=fields.chat_template_kwargs or {},
            forced_call=tools.forced_call,
        ),
        sampler=SamplerFields(
            fields.temperature,
            fields.top_p,
            fields.top_k,
            fields.min_p,
            fields.presence_penalty,
            fields.frequency_penalty,
            fields.repetition_penalty,
        ),
        seed=fields.seed,
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        max_tokens=_max_tokens(fields, settings, max_context),
        stop=stop,
        first_call_only=tools.first_call_only,
        form=_stream_form(fields),
        ignored=leniency.ignored,
    )


def plan_generation(
    request: ChatRequest, frontend: ChatFrontend, settings: Settings, *, max_context: int
) -> GenerationPlan:
    """Render, tokenise and fix the sampling of a request; raises what ``ChatFrontend`` raises."""
    prompt = frontend.prepare(request.conversation, settings, max_context=max_context)
    sampling = frontend.sampling(
        settings,
        request.sampler,
        thinking=prompt.enable_thinking,
        seed=request.seed,
        top_logprobs=request.top_logprobs,
    )
    return GenerationPlan(
        request_id=secrets.token_hex(16),
        prompt=prompt,
        sampling=sampling,
        max_tokens=request.max_tokens,
        stop=request.stop,
        first_call_only=request.first_call_only,
    )


def _model_name(asked: str, public: str, settings: Settings) -> str:
    """The name to answer with; raises ApiError for a model that is not served."""
    aliases = settings.compat.model_alias
    if asked != public and asked not in aliases and "*" not in aliases:
        raise model_not_found(asked, public)
    return asked if settings.compat.echo_model else public


def _stream_form(fields: ChatFields) -> StreamForm:
    options = fields.stream_options
    return StreamForm(
        stream=bool(fields.stream),
        include_usage=bool(options and options.include_usage),
        timings_per_token=bool(fields.timings_per_token),
        return_progress=bool(fields.return_progress),
    )


def _max_tokens(fields: ChatFields, settings: Settings, max_context: int) -> int:
    asked = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    if asked is None:
        default = settings.limits.default_max_tokens
        asked = max_context if default == "context" else default
    ceiling = settings.limits.max_output_tokens or max_context
    return min(asked, ceiling, max_context)


def _stop_strings(stop: str | Sequence[str] | None, leniency: Leniency) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS and not leniency.ignore("stop"):
        raise bad_request(f"stop: at most {MAX_STOP_STRINGS} strings are possible", "stop")
    if any(len(string) > MAX_STOP_CHARS for string in strings):
        raise bad_request(f"stop: a string has at most {MAX_STOP_CHARS} characters", "stop")
    return strings[:MAX_STOP_STRINGS]


def _with_json_hint(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """With the instruction at the end of the last system turn, or in a new first one."""
    for index in reversed(range(len(messages))):
        if messages[index].role == "system":
            content = "\n\n".join(part for part in (messages[index].content, JSON_HINT) if part)
            return (*messages[:index], replace(messages[index], content=content), *messages[index + 1 :])
    return (Message("system", JSON_HINT), *messages)
