"""Every refusal of the chat tables (serving §2.0, §2.1, §2.6), strict and lenient."""

from __future__ import annotations

from typing import Any

import pytest

from ninferd.api.chat_fields import MAX_JSON_SEPARATORS
from tests.api.harness import Rig, body
from tests.support.frontends import make_settings

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "q"}
TEXT = {"type": "text", "text": "x"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def function(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **members}}


def message(**members: Any) -> dict[str, Any]:
    return {"messages": [USER, members]}


def part(role: str = "user", **members: Any) -> dict[str, Any]:
    extra = {"tool_call_id": "1"} if role == "tool" else {}
    return message(role=role, content=[members], **extra)


def call(**members: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **members}


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"model": None}, "model", None),
    ({"model": ""}, "model", None),
    ({"model": 5}, "model", None),
    ({"messages": None}, "messages", None),
    ({"messages": []}, "messages", None),
    ({"messages": "q"}, "messages", None),
    ({"messages": ["q"]}, "messages", None),
    ({"max_tokens": -1}, "max_tokens", None),
    ({"max_tokens": 1.0}, "max_tokens", None),
    ({"max_tokens": True}, "max_tokens", None),
    ({"max_completion_tokens": -1}, "max_completion_tokens", None),
    ({"max_completion_tokens": "5"}, "max_completion_tokens", None),
    ({"temperature": 2.5}, "temperature", None),
    ({"temperature": "1"}, "temperature", None),
    ({"temperature": True}, "temperature", None),
    ({"top_p": 1.5}, "top_p", None),
    ({"presence_penalty": 3}, "presence_penalty", None),
    ({"frequency_penalty": -3}, "frequency_penalty", None),
    ({"top_k": 21}, "top_k", None),
    ({"top_k": 1.5}, "top_k", None),
    ({"min_p": -0.5}, "min_p", None),
    ({"repetition_penalty": 0}, "repetition_penalty", None),
    ({"seed": 1.5}, "seed", None),
    ({"seed": "1"}, "seed", None),
    ({"n": 2}, "n", "n_not_supported"),
    ({"n": True}, "n", "n_not_supported"),
    ({"n": "1"}, "n", "n_not_supported"),
    ({"n": 1.0}, "n", "n_not_supported"),
    ({"stop": ""}, "stop", None),
    ({"stop": [""]}, "stop", None),
    ({"stop": [1]}, "stop", None),
    ({"stop": "x" * 1025}, "stop", None),
    ({"stream": "yes"}, "stream", None),
    ({"stream": 1}, "stream", None),
    ({"stream_options": []}, "stream_options", None),
    ({"stream_options": {"include_usage": 1}}, "stream_options", None),
    ({"stream_options": {"include_obfuscation": "no"}}, "stream_options", None),
    ({"tools": {}}, "tools", None),
    ({"tools": ["f"]}, "tools", None),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools", "tool_type_not_supported"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools", "tool_type_not_supported"),
    ({"tools": [{"type": "function"}]}, "tools", None),
    ({"tools": [function(name="a b")]}, "tools", None),
    ({"tools": [function(name="a" * 65)]}, "tools", None),
    ({"tools": [function(name=None)]}, "tools", None),
    ({"tools": [function(parameters=[])]}, "tools", None),
    ({"tools": [function(description=1)]}, "tools", None),
    ({"tools": [function(strict="yes")]}, "tools", None),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", None),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice", "tool_type_not_supported"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", None),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", None),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}}, "tool_choice", None),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice", None),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [TOOL]}}, "tool_choice", None),
    ({"tool_choice": 5}, "tool_choice", None),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", None),
    ({"reasoning_effort": "huge"}, "reasoning_effort", None),
    ({"reasoning_effort": 1}, "reasoning_effort", None),
    ({"enable_thinking": "no"}, "enable_thinking", None),
    ({"preserve_thinking": 0}, "preserve_thinking", None),
    ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking", "conflicting_template_option"),
    (
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        "enable_thinking",
        "conflicting_template_option",
    ),
    (
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "reasoning_effort",
        "conflicting_template_option",
    ),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", None),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_prompt"),
    ({"thinking_budget": 0}, "thinking_budget", None),
    ({"thinking_budget": 5}, "thinking_budget", "thinking_budget_not_supported"),
    ({"thinking_token_budget": 5}, "thinking_token_budget", "thinking_budget_not_supported"),
    ({"reasoning_budget": 5}, "reasoning_budget", "thinking_budget_not_supported"),
    ({"thinking_budget": 5, "reasoning_budget": 6}, "thinking_budget", None),
    ({"post_thinking": []}, "post_thinking", None),
    ({"post_thinking": {"temperature": 0.1}}, "post_thinking", "post_thinking_not_supported"),
    ({"timings_per_token": "x", "stream": True}, "timings_per_token", None),
    ({"return_progress": 1, "stream": True}, "return_progress", None),
    ({"response_format": {"type": "json_schema"}}, "response_format", "response_format_not_supported"),
    ({"response_format": "text"}, "response_format", "response_format_not_supported"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias_not_supported"),
    ({"logit_bias": []}, "logit_bias", None),
    ({"logprobs": 1}, "logprobs", None),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", None),
    ({"top_logprobs": 2}, "top_logprobs", None),
    ({"modalities": ["audio"]}, "modalities", "modality_not_supported"),
    ({"verbosity": "extreme"}, "verbosity", None),
    ({"store": "yes"}, "store", None),
    ({"functions": [{}]}, "functions", "legacy_tools_not_supported"),
    ({"functions": {}}, "functions", None),
    ({"function_call": {"name": "f"}}, "function_call", "legacy_tools_not_supported"),
    ({"function_call": "f"}, "function_call", None),
    ({"web_search_options": {}}, "web_search_options", "web_search_not_supported"),
    ({"moderation": {}}, "moderation", "moderation_not_supported"),
    ({"grammar": "root ::= x"}, "grammar", "constrained_decoding_not_supported"),
    *(
        ({name: {}}, name, "constrained_decoding_not_supported")
        for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
    ),
    ({"mm_processor_kwargs": {"x": 1}}, "mm_processor_kwargs", "mm_processor_kwargs_not_supported"),
    ({"mm_processor_kwargs": []}, "mm_processor_kwargs", None),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key", None),
    ({"safety_identifier": 5}, "safety_identifier", None),
    ({"user": 5}, "user", None),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", None),
    ({"prompt_cache_options": {"mode": "off"}}, "prompt_cache_options", None),
    ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options", None),
]

REFUSED_MESSAGES: list[tuple[dict[str, Any], str | None]] = [
    (message(role="robot", content="x"), "unsupported_role"),
    (message(content="x"), None),
    (message(role="user"), None),
    (message(role="system", content=None), None),
    (message(role="user", content=5), None),
    (message(role="user", content=[5]), None),
    (message(role="tool", content="x"), None),
    (message(role="tool", tool_call_id="1"), None),
    (message(role="function", content="x"), None),
    (message(role="user", content="x", tool_call_id="1"), None),
    (message(role="user", content="x", tool_calls=[call()]), None),
    (message(role="user", content="x", reasoning_content="r"), None),
    (message(role="user", content="x", reasoning="r"), None),
    (message(role="assistant", content="x", tool_calls=[call(type="custom")]), "tool_type_not_supported"),
    (message(role="assistant", tool_calls=[call(function=None)]), None),
    (message(role="assistant", tool_calls=[call(function={"name": "f", "arguments": {}})]), None),
    (message(role="assistant", tool_calls=[call(function={"name": "f", "arguments": "{"})]), "invalid_prompt"),
    (message(role="assistant", tool_calls=[call(function={"name": "f", "arguments": "[]"})]), "invalid_prompt"),
    (message(role="assistant", tool_calls=[call(id=None)]), None),
    (message(role="assistant", content="x", audio={"id": "a"}), "assistant_history_not_supported"),
    (message(role="assistant", content="x", reasoning="a", reasoning_content="b"), "conflicting_template_option"),
    (part(type="input_audio"), "modality_not_supported"),
    (part(type="refusal", refusal="x"), "modality_not_supported"),
    (part(type="text"), None),
    (part(type="image_url", image_url="ftp://x"), None),
    (part(type="image_url", image_url={}), None),
    (part(type="image_url", image_url={"url": "data:x", "detail": "huge"}), None),
    (part(type="image_url", image_url={"url": "https://x"}), "vision_disabled"),
    (part(type="image_url", image_url="data:image/png;base64,"), "vision_disabled"),
    (part(type="video_url", video_url={"url": "https://x"}), "vision_disabled"),
    (part("tool", type="image_url", image_url="https://x"), "vision_disabled"),
    (part("tool", type="video_url", video_url="https://x"), "modality_not_supported"),
    (part("system", type="image_url", image_url="https://x"), "modality_not_supported"),
    (part(type="text", text="x", prompt_cache_breakpoint={"mode": "auto"}), "invalid_cache_breakpoint"),
    (part(type="text", text="x", prompt_cache_breakpoint=True), "invalid_cache_breakpoint"),
    ({"messages": [{"role": "assistant", "content": "no question"}]}, "invalid_prompt"),
]

LENIENT_ONLY: list[tuple[dict[str, Any], str, str | None, str | None]] = [
    ({"verbosity": "low"}, "verbosity", "verbosity_not_supported", "verbosity"),
    ({"verbosity": "high"}, "verbosity", "verbosity_not_supported", "verbosity"),
    ({"store": True}, "store", "store_not_supported", "store"),
    ({"tools": [function(strict=True)]}, "tools", "strict_tools_not_supported", "tools.function.strict"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "tool_choice_not_supported", None),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        "tool_choice_not_supported",
        None,
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [TOOL]}},
        "tool_choice",
        "tool_choice_not_supported",
        None,
    ),
    ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls", "parallel_tool_calls_not_supported", None),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", None, "stop"),
    ({"response_format": {"type": "json_object"}}, "response_format", "response_format_not_supported", None),
    ({"messages": [{**USER, "name": "ann"}]}, "messages", "message_name_not_supported", "messages.name"),
]

ACCEPTED: list[dict[str, Any]] = [
    {"n": 1, "logit_bias": {"5": 0}, "logprobs": False, "top_logprobs": 0, "modalities": ["text"]},
    {"response_format": {"type": "text"}, "verbosity": "medium", "store": False, "functions": [], "grammar": ""},
    {"function_call": "none", "mm_processor_kwargs": {"x": None}, "audio": {"x": 1}, "prediction": {"y": 2}},
    {"user": "u" * 100, "prompt_cache_key": "k" * 64, "safety_identifier": "s", "prompt_cache_retention": "24h"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "metadata": {"a": 1}, "service_tier": "flex"},
    {"unknown_field": [1, {"x": None}], "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"parallel_tool_calls": False},
    {"parallel_tool_calls": True, "tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}},
    {
        "tools": [TOOL],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]}},
    },
    {"chat_template_kwargs": {"enable_thinking": False, "own": "x"}, "enable_thinking": False},
    {"repetition_penalty": 1.1, "seed": -5, "top_k": 0, "temperature": 0, "min_p": 0.05},
    {"stop": ["a", "b", "c", "d"]},
    {"post_thinking": {}, "timings_per_token": True, "return_progress": True},
    {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
            USER,
        ]
    },
    {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": None,
                "reasoning": "r",
                "reasoning_content": "r",
                "audio": None,
                "tool_calls": [call(), call(function={"name": "g", "arguments": ""})],
            },
            {"role": "tool", "tool_call_id": "1", "name": "f", "content": [{"type": "text", "text": "ok"}]},
            {"role": "function", "name": "g", "content": ""},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": "no"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}],
            },
        ]
    },
    {"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, USER]},
    dict.fromkeys(("temperature", "stop", "tools", "n", "stream", "store", "seed", "tool_choice"), None),
]


def strict_rig() -> Rig:
    return Rig(settings=make_settings(compat={"mode": "strict"}))


async def assert_refused(rig: Rig, fields: dict[str, Any], param: str | None, code: str | None) -> None:
    response = await rig.chat(**fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]
    assert rig.engine.requests == []


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize(("fields", "param", "code"), REFUSED, ids=str)
async def test_field_is_refused(fields: dict[str, Any], param: str, code: str | None, mode: str) -> None:
    await assert_refused(Rig(settings=make_settings(compat={"mode": mode})), fields, param, code)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize(("fields", "code"), REFUSED_MESSAGES, ids=str)
async def test_message_is_refused(fields: dict[str, Any], code: str | None, mode: str) -> None:
    await assert_refused(Rig(settings=make_settings(compat={"mode": mode})), fields, "messages", code)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": ["q"]}, "messages[0]: an object is needed"),
        (message(role="user", content=[TEXT, {}]), "messages[1].content[1].type: Field required"),
        (message(role="user", content=5), "messages[1].content: Input should be a valid string"),
        (message(role="user", content=[5]), "messages[1].content[0]: an object is needed"),
        ({"stop": ["x", ""]}, "stop[1]: String should have at least 1 character"),
        ({"stop": "", "n": 2}, "stop: String should have at least 1 character"),
        ({"temperature": "hot", "stop": [""]}, "temperature: Input should be a valid number"),
    ],
    ids=str,
)
async def test_refusal_names_the_exact_place(fields: dict[str, Any], text: str) -> None:
    response = await Rig().chat(**fields)
    assert response.json()["error"]["message"] == text


@pytest.mark.parametrize(
    "fields",
    [
        message(role="r" * 5000, content="x"),
        part(type="t" * 5000),
        {"logit_bias": {"k" * 5000: "x"}},
        {"tools": [TOOL], "tool_choice": {"type": ["y" * 5000]}},
        message(role="assistant", tool_calls=[call(function={"name": "f" * 5000, "arguments": "{"})]),
    ],
    ids=["role", "part", "key", "choice", "call"],
)
async def test_refusal_does_not_send_a_long_text_back(fields: dict[str, Any]) -> None:
    response = await Rig().chat(**fields)
    assert response.status_code == 400
    text = response.json()["error"]["message"]
    assert len(text) < 1100
    assert " … " in text


@pytest.mark.parametrize(("fields", "param", "code", "ignored"), LENIENT_ONLY, ids=str)
async def test_lenient_rows(fields: dict[str, Any], param: str, code: str | None, ignored: str | None) -> None:
    await assert_refused(strict_rig(), fields, param, code)
    response = await Rig().chat(**fields)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-ninfer-ignored") == ignored


async def test_image_detail() -> None:
    fields = part(type="image_url", image_url={"url": "https://x", "detail": "high"})
    await assert_refused(strict_rig(), fields, "messages", "image_detail_not_supported")
    await assert_refused(Rig(), fields, "messages", "vision_disabled")


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
async def test_accepted(fields: dict[str, Any]) -> None:
    response = await strict_rig().chat({**body(), **fields})
    assert response.status_code == 200, response.text
    assert "x-ninfer-ignored" not in response.headers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "request body is not valid JSON"),
        (b"{", "request body is not valid JSON"),
        (b"\xff", "request body is not valid JSON"),
        (b'{"seed": NaN}', "request body is not valid JSON"),
        (b"[" * 100_000, "request body is not valid JSON"),
        (b'{"x":[' + b"0," * MAX_JSON_SEPARATORS + b"0]}", "request body has more than 2097152 JSON values"),
        (b'{"x":[' + b"{}" * MAX_JSON_SEPARATORS + b"0]}", "request body has more than 2097152 JSON values"),
        (b"[]", "request body must be a JSON object"),
        (b'"x"', "request body must be a JSON object"),
    ],
    ids=["empty", "cut", "not utf-8", "NaN", "endless nesting", "many numbers", "many objects", "array", "string"],
)
async def test_bodies_that_are_not_requests(content: bytes, message: str) -> None:
    async with Rig().client() as client:
        response = await client.post("/v1/chat/completions", content=content)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


async def test_last_of_duplicate_keys_wins() -> None:
    rig = Rig()
    async with rig.client() as client:
        content = b'{"model":"x","messages":[{"role":"user","content":"q"}],"model":"ninfer-tiny","max_tokens":5}'
        assert (await client.post("/v1/chat/completions", content=content)).status_code == 200


async def test_another_model() -> None:
    response = await Rig().chat(model="gpt")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")


@pytest.mark.parametrize(
    ("compat", "answered_as"),
    [
        ({"model_alias": ["gpt"]}, "gpt"),
        ({"model_alias": ["*"]}, "gpt"),
        ({"model_alias": ["*"], "echo_model": False}, "ninfer-tiny"),
    ],
)
async def test_model_aliases(compat: dict[str, Any], answered_as: str) -> None:
    response = await Rig(settings=make_settings(compat=compat)).chat(model="gpt")
    assert response.json()["model"] == answered_as


async def test_prompt_longer_than_the_context() -> None:
    response = await Rig().chat(messages=[{"role": "user", "content": "word " * 3000}])
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"], error["max_context"]) == ("context_length_exceeded", "messages", 2048)
    assert error["prompt_tokens"] > 2048
