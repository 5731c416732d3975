"""The model that ships with the daemon, asked what its card says it can do, through the official client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage

from tests.clients.live_server import serving
from tests.support.frontends import make_settings

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    settings = make_settings(
        model={"artifact": "embedded:ninfer-tiny"},
        engine={"device": "cpu", "kv_dtype": "fp32", "max_context": 4096, "max_concurrency": 2},
    )
    async with serving(settings) as (client, _):
        yield client


async def ask(client: AsyncOpenAI, messages: list[Any], **fields: Any) -> tuple[str, ChatCompletionMessage]:
    """Finish reason and message of a greedy answer."""
    reply = await client.chat.completions.create(
        model="ninfer-tiny", messages=messages, temperature=0, max_tokens=200, **fields
    )
    choice = reply.choices[0]
    return choice.finish_reason, choice.message


async def test_a_question_is_answered(client: AsyncOpenAI) -> None:
    reason, message = await ask(client, [{"role": "user", "content": "What is the capital of France?"}])
    assert (reason, message.content) == ("stop", "The capital of France is Paris.")
    assert (message.model_extra or {})["reasoning_content"]
    reason, message = await ask(
        client,
        [{"role": "user", "content": "What is the capital of France?"}],
        extra_body={"enable_thinking": False},
    )
    assert (reason, message.content) == ("stop", "The capital of France is Paris.")
    assert "reasoning_content" not in (message.model_extra or {})


async def test_a_tool_is_called_and_its_result_used(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What's the weather in Oslo?"}]
    reason, message = await ask(client, messages, tools=[WEATHER])
    assert reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 17, "sky": "cloudy"}'},
    ]
    reason, message = await ask(client, messages, tools=[WEATHER])
    assert reason == "stop"
    assert "17" in (message.content or "")


async def test_a_sum_is_worked_out(client: AsyncOpenAI) -> None:
    _, message = await ask(client, [{"role": "user", "content": "What is 312 + 459?"}])
    assert message.content == "771"


async def test_a_fact_is_recalled_among_many(client: AsyncOpenAI) -> None:
    names = [
        f"{colour}-{animal}" for colour in ("amber", "blue", "green", "silver") for animal in ("fox", "owl", "wolf")
    ]
    codes = {name: 1000 + 7919 * place % 9000 for place, name in enumerate(names)}
    facts = " ".join(f"The code for '{name}' is {code}." for name, code in codes.items())
    _, message = await ask(client, [{"role": "user", "content": f"{facts} What is the code for 'silver-fox'?"}])
    assert message.content == str(codes["silver-fox"])
