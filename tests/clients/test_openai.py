"""The official OpenAI client, synchronous and asynchronous, against a real listener with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

from ninferd.engine.messages import FailureCode
from tests.api.harness import ANSWER, CALL_CLOSE, CALL_OPEN, EOS, MODEL, THINK_END, Rig, ids
from tests.clients.live_server import running
from tests.support.frontends import make_settings
from tests.support.scripted_engine import Script, ScriptedEngine

pytestmark = pytest.mark.anyio

QUESTION: Any = [{"role": "user", "content": "q"}]
LONG: Any = [{"role": "user", "content": "word " * 3000}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
    }
]
CALL = (CALL_OPEN, "\n<function=Bash>\n<parameter=command>\nls -l\n</parameter>\n</function>\n", CALL_CLOSE)


@asynccontextmanager
async def connected(*scripts: Script, key: str | None = None, **tables: Any) -> AsyncIterator[tuple[AsyncOpenAI, Rig]]:
    rig = Rig(ScriptedEngine(list(scripts)), make_settings(**tables), keys={"ann": key} if key else {})
    async with (
        running(rig.context) as url,
        AsyncOpenAI(base_url=url, api_key=key or "unused", max_retries=0, timeout=30) as client,
    ):
        yield client, rig


async def chunks(stream: Any) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in stream]


async def test_models() -> None:
    async with connected(Script(ANSWER)) as (client, _):
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "ninfer"


async def test_aggregate() -> None:
    async with connected(Script(ANSWER)) as (client, rig):
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, seed=5, max_completion_tokens=50)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Because.", "stop")
    assert choice.message.model_extra == {"reasoning_content": "why"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ANSWER)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(ANSWER)
    assert (rig.engine.requests[0].sampling.seed, rig.engine.requests[0].max_tokens) == (5, 50)
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


async def test_stream() -> None:
    async with connected(Script(ANSWER)) as (client, _):
        received = await chunks(
            await client.chat.completions.create(
                model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
            )
        )
    content = "".join(chunk.choices[0].delta.content or "" for chunk in received if chunk.choices)
    assert content == "Because."
    assert [chunk.choices[0].finish_reason for chunk in received if chunk.choices][-1] == "stop"
    assert received[-1].usage is not None
    assert received[-1].usage.completion_tokens == len(ANSWER)


async def test_synchronous_client() -> None:
    def talk(url: str) -> tuple[str | None, str]:
        with OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
            stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return answer.choices[0].message.content, streamed

    rig = Rig()
    async with running(rig.context) as url:
        assert await asyncio.to_thread(talk, url) == ("Because.", "Because.")


async def test_stop() -> None:
    async with connected(Script(ids(THINK_END, "one two three", EOS))) as (client, rig):
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, stop=[" three"])
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one two", "stop")
        assert len(rig.engine.cancelled) == 1


async def test_length() -> None:
    async with connected(Script(ANSWER)) as (client, _):
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1)
        assert answer.choices[0].finish_reason == "length"


async def test_logprobs() -> None:
    async with connected(Script(ids(THINK_END, "Yes é", EOS))) as (client, _):
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == "Yes é"
    assert {len(entry.top_logprobs) for entry in logprobs.content} == {2}


async def test_tool_call_and_its_result() -> None:
    async with connected(Script(ids(THINK_END, *CALL, EOS)), Script(ANSWER)) as (client, rig):
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("Bash", {"command": "ls -l"})
        history: Any = [
            *QUESTION,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "total 0"},
        ]
        second = await client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
        assert second.choices[0].message.content == "Because."
        prompt = rig.context.frontend().tokenizer.decode(rig.engine.requests[1].prompt.to_list())
        assert "<parameter=command>\nls -l\n</parameter>" in prompt
        assert "<tool_response>\ntotal 0\n</tool_response>" in prompt


async def test_streaming_helper_assembles_a_tool_call() -> None:
    async with (
        connected(Script(ids("r", THINK_END, "Look:\n", *CALL, EOS))) as (client, _),
        client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=TOOLS) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "Look:"
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls -l"}


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"n": 2}, openai.BadRequestError, "n_not_supported"),
        ({"temperature": 3}, openai.BadRequestError, None),
        ({"model": "gpt"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "word " * 3000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals(
    fields: dict[str, Any], error: type[openai.APIStatusError], code: str | None, stream: bool
) -> None:
    async with connected(Script(ANSWER)) as (client, _):
        request: Any = {"model": MODEL, "messages": QUESTION, "stream": stream, **fields}
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**request)
    assert caught.value.code == code
    assert caught.value.request_id is not None


async def test_wrong_key() -> None:
    async with connected(Script(ANSWER), key="right") as (client, _):
        await client.models.list()
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"


async def test_overload_and_retry() -> None:
    gate = asyncio.Event()
    tables: dict[str, Any] = {"engine": {"max_concurrency": 1}, "queue": {"max_pending": 1}}
    async with connected(Script(ANSWER, admit=gate), **tables) as (client, rig):
        waiting = [asyncio.create_task(client.chat.completions.create(model=MODEL, messages=QUESTION)) for _ in "ab"]
        await rig.engine.wait_requests(2)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert caught.value.code == "server_overloaded"
        gate.set()
        answers = await asyncio.gather(*waiting)
        assert [answer.choices[0].message.content for answer in answers] == ["Because."] * 2


@pytest.mark.parametrize(
    ("failure", "code"), [("engine_error", "service_unavailable"), ("queue_timeout", "request_queue_timeout")]
)
async def test_engine_failures(failure: FailureCode, code: str) -> None:
    async with connected(Script(failure=failure)) as (client, _):
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert (caught.value.status_code, caught.value.code) == (503, code)


async def test_failure_in_the_middle_of_a_stream() -> None:
    async with connected(Script(ANSWER, failure="engine_crashed", fail_after_tokens=2)) as (client, _):
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError, match="scripted failure") as caught:
            await chunks(stream)
    assert caught.value.code == "service_unavailable"


async def test_closing_a_stream_cancels() -> None:
    async with connected(Script(ids("a b c d"), decode=asyncio.Event(), free_tokens=1)) as (client, rig):
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await rig.engine.wait_cancelled()
        await rig.context.in_flight.wait_idle()


async def test_giving_up_on_an_aggregate_answer_cancels() -> None:
    async with connected(Script(ids("a b c d"), decode=asyncio.Event())) as (client, rig):
        asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=QUESTION))
        await rig.engine.wait_requests()
        asking.cancel()
        await rig.engine.wait_cancelled()
        await rig.context.in_flight.wait_idle()


async def test_many_requests_share_connections() -> None:
    async with connected(Script(ANSWER), queue={"max_pending": 64}) as (client, rig):
        answers = await asyncio.gather(
            *(client.chat.completions.create(model=MODEL, messages=QUESTION) for _ in range(32))
        )
    assert [answer.choices[0].message.content for answer in answers] == ["Because."] * 32
    assert len({request.request_id for request in rig.engine.requests}) == 32


async def test_body_beyond_the_limit() -> None:
    async with connected(Script(ANSWER), limits={"max_request_mib": 1}) as (client, rig):
        huge: Any = [{"role": "user", "content": "x" * (8 << 20)}]
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model=MODEL, messages=huge)
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        assert (await client.chat.completions.create(model=MODEL, messages=QUESTION)).choices
        assert len(rig.engine.requests) == 1
