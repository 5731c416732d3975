"""What a chat request may ask for but this server cannot do: each refused by name (serving §2.1, §2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninferd.api.chat_fields import ChatFields
from ninferd.api.compat import Leniency
from ninferd.api.errors import ApiError, bad_request

_CONSTRAINT_FIELDS = (
    "grammar",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_BUDGET_FIELDS = ("thinking_budget", "thinking_token_budget", "reasoning_budget")


def check_support(fields: ChatFields, leniency: Leniency) -> None:
    """Raise ApiError for the first field with a value that cannot be honoured."""
    _check_choices(fields)
    _check_thinking(fields)
    _check_sampling(fields)
    _check_formats(fields, leniency)
    _check_foreign_features(fields, leniency)


def _check_choices(fields: ChatFields) -> None:
    if fields.n is not None and (type(fields.n) is not int or fields.n != 1):  # true and 1.0 are not 1
        raise _refused("n", "only one choice per request is generated", "n_not_supported")


def _check_thinking(fields: ChatFields) -> None:
    budgets = {value for name in _BUDGET_FIELDS if (value := getattr(fields, name)) is not None}
    for name in _BUDGET_FIELDS:
        if getattr(fields, name) is not None:
            if len(budgets) > 1:
                raise bad_request(f"{name}: thinking budgets given under several names differ", name)
            raise _refused(name, "thinking budgets are not available in this build", "thinking_budget_not_supported")
    if fields.post_thinking:
        raise _refused(
            "post_thinking", "a second sampler is not available in this build", "post_thinking_not_supported"
        )


def _check_sampling(fields: ChatFields) -> None:
    if any(fields.logit_bias.values()) if fields.logit_bias else False:
        raise _refused("logit_bias", "logit bias is not supported", "logit_bias_not_supported")
    if fields.top_logprobs and not fields.logprobs:
        raise bad_request("top_logprobs: needs logprobs: true", "top_logprobs")


def _check_formats(fields: ChatFields, leniency: Leniency) -> None:
    kind = fields.response_format.get("type") if isinstance(fields.response_format, Mapping) else None
    hinted = kind == "json_object" and leniency.lenient
    if fields.response_format is not None and kind != "text" and not hinted:
        raise _refused("response_format", "only type text is supported", "response_format_not_supported")
    if fields.modalities not in (None, ["text"]):
        raise _refused("modalities", 'only ["text"] is supported', "modality_not_supported")
    if fields.verbosity in ("low", "high") and not leniency.ignore("verbosity"):
        raise _refused("verbosity", "only medium is supported", "verbosity_not_supported")
    for name in _CONSTRAINT_FIELDS:
        value = getattr(fields, name)
        if value is not None and not (name == "grammar" and value == ""):
            raise _refused(name, "constrained decoding is not supported", "constrained_decoding_not_supported")


def _check_foreign_features(fields: ChatFields, leniency: Leniency) -> None:
    if fields.store and not leniency.ignore("store"):
        raise _refused("store", "answers are not stored", "store_not_supported")
    if fields.functions:
        raise _refused("functions", "use tools", "legacy_tools_not_supported")
    if isinstance(fields.function_call, dict):
        raise _refused("function_call", "use tool_choice", "legacy_tools_not_supported")
    if fields.web_search_options is not None:
        raise _refused("web_search_options", "there is no web search", "web_search_not_supported")
    if fields.moderation is not None:
        raise _refused("moderation", "there is no moderation", "moderation_not_supported")
    if any(value is not None for value in (fields.mm_processor_kwargs or {}).values()):
        raise _refused("mm_processor_kwargs", "there is no media processor", "mm_processor_kwargs_not_supported")


def _refused(field: str, reason: str, code: str) -> ApiError:
    return bad_request(f"{field}: {reason}", field, code)


def wants_json_hint(fields: ChatFields) -> bool:
    """Whether ``response_format`` asks for any JSON object, which is passed on to the model as an instruction."""
    response_format: Any = fields.response_format
    return isinstance(response_format, Mapping) and response_format.get("type") == "json_object"
