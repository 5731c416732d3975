"""The fields of ``POST /v1/chat/completions`` and their types (serving §2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ninferd.api.chat_messages import MessageFields
from ninferd.api.errors import bad_request
from ninferd.chat import json_text
from ninferd.chat.conversation import ReasoningEffort

ShortText = Annotated[str, Field(max_length=64)]
NonEmptyText = Annotated[str, Field(min_length=1)]

MAX_JSON_SEPARATORS = 1 << 21
"""Commas and opening brackets of a body, those in its strings included.

Parsing holds the interpreter for as long as there are values to make, and heartbeats wait. More than any prompt that
fits a context has; base64, which makes bodies large, has none.
"""


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CacheOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class ChatFields(BaseModel):
    """One request body. ``Any`` marks fields whose refusal has a code of its own (``chat_rules``, ``chat_tools``).

    ``null`` is the same as absent, unknown fields are ignored, ``true`` is not 1 and ``1.0`` is no integer.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())

    model: NonEmptyText
    messages: Annotated[list[MessageFields], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: Any = None
    stop: NonEmptyText | list[NonEmptyText] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: Annotated[int, Field(gt=0)] | None = None
    thinking_token_budget: Annotated[int, Field(gt=0)] | None = None
    reasoning_budget: Annotated[int, Field(gt=0)] | None = None
    post_thinking: dict[str, Any] | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_format: Any = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    modalities: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool | None = None
    functions: list[Any] | None = None
    function_call: Literal["none", "auto"] | dict[str, Any] | None = None
    web_search_options: Any = None
    moderation: Any = None
    grammar: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    mm_processor_kwargs: dict[str, Any] | None = None
    prompt_cache_key: ShortText | None = None
    safety_identifier: ShortText | None = None
    user: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None


def parse_chat_fields(body: bytes) -> ChatFields:
    """JSON to typed fields; raises ApiError naming the first field that does not fit."""
    if sum(body.count(separator) for separator in (b",", b"[", b"{")) > MAX_JSON_SEPARATORS:
        raise bad_request(f"request body has more than {MAX_JSON_SEPARATORS} JSON values", None)
    try:
        content = json_text.loads(body)
    except ValueError:
        raise bad_request("request body is not valid JSON", None) from None
    if not isinstance(content, dict):
        raise bad_request("request body must be a JSON object", None)
    try:
        return ChatFields.model_validate(content)
    except ValidationError as error:
        problem = _first_problem(error)
        reason = "an object is needed" if problem["type"] == "model_type" else problem["msg"]
        raise bad_request(f"{_place(problem['loc'])}: {reason}", str(problem["loc"][0])) from None


def _first_problem(error: ValidationError) -> ErrorDetails:
    """Of the first field that does not fit; where it may be one of several types, of the type that fits best."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    *field, branch = first["loc"]
    if not _is_branch(branch):
        return first
    alternatives = (problem for problem in problems if list(problem["loc"][: len(field)]) == field)
    return max(alternatives, key=lambda problem: len(problem["loc"]))


def _place(location: Sequence[int | str]) -> str:
    """``messages[0].content`` for a pydantic location; the names of union branches stay out."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not _is_branch(part):
            place += f".{part}" if place else part
    return place


def _is_branch(part: int | str) -> bool:
    """Whether a part of a pydantic location names one type of a union, not a field."""
    return isinstance(part, str) and (part in ("str", "int", "float", "bool") or not part.isidentifier())
