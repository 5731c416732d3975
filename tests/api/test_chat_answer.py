"""The content of answers: aggregate objects, and the exact order of frames."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ninferd.engine.messages import SamplingParams
from tests.api.harness import ANSWER, CALL_CLOSE, CALL_OPEN, EOS, MODEL, THINK_END, TOKENIZER, Rig, ids
from tests.support.frontends import make_settings, tiny_frontend
from tests.support.scripted_engine import Script, ScriptedEngine

pytestmark = pytest.mark.anyio

BASH = {
    "type": "function",
    "function": {"name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}
OTHER = {"type": "function", "function": {"name": "other"}}
CALL = (CALL_OPEN, "\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n", CALL_CLOSE)
TWO_CALLS = ids("r", THINK_END, "\n\nListing.\n", *CALL, "\n", *CALL, EOS)


def rig(script: Script, **tables: dict[str, Any]) -> Rig:
    return Rig(ScriptedEngine([script]), make_settings(**tables))


def prompt_tokens(engine_rig: Rig) -> int:
    return len(engine_rig.engine.requests[-1].prompt)


async def test_aggregate() -> None:
    served = rig(Script(ANSWER, cached_tokens=4))
    answer = (await served.chat()).json()
    assert re.fullmatch("chatcmpl-[0-9a-f]{16}", answer.pop("id"))
    assert isinstance(answer.pop("created"), int)
    timings = answer.pop("timings")
    total = prompt_tokens(served)
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Because.",
                    "refusal": None,
                    "reasoning_content": "why",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": total,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens": len(ANSWER),
            "completion_tokens_details": {"reasoning_tokens": len(ids("why")) + 1},
            "total_tokens": total + len(ANSWER),
        },
    }
    decode_ms = 10.0 * (len(ANSWER) - 1)
    assert timings == pytest.approx(
        {
            "cache_n": 4,
            "prompt_n": total - 4,
            "prompt_ms": 20.0,
            "prompt_per_token_ms": 20.0 / (total - 4),
            "prompt_per_second": (total - 4) / 0.020,
            "predicted_n": len(ANSWER),
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": 10.0,
            "predicted_per_second": 100.0,
        }
    )


async def test_nothing_generated() -> None:
    answer = (await rig(Script(ANSWER)).chat(max_tokens=0)).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert "reasoning_content" not in choice["message"]
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["timings"]["predicted_per_second"] == 0


async def test_tool_calls() -> None:
    choice = (await rig(Script(TWO_CALLS)).chat(tools=[BASH])).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Listing."
    calls = choice["message"]["tool_calls"]
    assert all(re.fullmatch("call_[0-9a-f]{16}", call.pop("id")) for call in calls)
    assert calls == [{"type": "function", "function": {"name": "Bash", "arguments": '{"command":"ls"}'}}] * 2


async def test_calls_without_text_have_null_content() -> None:
    message = (await rig(Script(ids(THINK_END, *CALL, EOS))).chat(tools=[BASH])).json()["choices"][0]["message"]
    assert message["content"] is None


async def test_length_wins_over_calls() -> None:
    served = rig(Script(TWO_CALLS, reason="length"))
    choice = (await served.chat(tools=[BASH])).json()["choices"][0]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("length", 2)


@pytest.mark.parametrize("choice", ["none", {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "other"}]}])
async def test_tools_that_may_not_be_called_stay_text(choice: Any) -> None:
    served = rig(Script(ids(THINK_END, *CALL, EOS)))
    answer = (await served.chat(tools=[BASH, OTHER], tool_choice=choice)).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] == TOKENIZER.decode(ids(*CALL))
    assert "tool_calls" not in answer["message"]


async def test_only_one_call_when_parallel_calls_are_off() -> None:
    served = rig(Script(TWO_CALLS))
    answer = (await served.chat(tools=[BASH], parallel_tool_calls=False)).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert len(served.engine.cancelled) == 1


@pytest.mark.parametrize(
    ("choice", "tools", "seeded"),
    [
        ({"type": "function", "function": {"name": "Bash"}}, [BASH, OTHER], "=Bash>\n"),
        ("required", [BASH], "=Bash>\n"),
        ("required", [BASH, OTHER], ""),
    ],
    ids=["named", "required, one tool", "required, two tools"],
)
async def test_required_call_continues_the_seeded_opener(choice: Any, tools: list[Any], seeded: str) -> None:
    body = "=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n"
    served = rig(Script(ids(body.removeprefix(seeded), CALL_CLOSE, EOS)))
    message = (await served.chat(tools=tools, tool_choice=choice)).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "Bash", "arguments": '{"command":"ls"}'}
    assert message["content"] is None
    prompt = TOKENIZER.decode(served.engine.requests[0].prompt.to_list())
    assert prompt.endswith(f"\n\n<tool_call>\n<function{seeded}")


async def test_json_hint_reaches_the_system_turn() -> None:
    served = rig(Script(ANSWER))
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]
    for messages in (None, system):
        fields = {} if messages is None else {"messages": messages}
        await served.chat(response_format={"type": "json_object"}, **fields)
    prompts = [TOKENIZER.decode(request.prompt.to_list()) for request in served.engine.requests]
    assert prompts[0].startswith("<|im_start|>system\nAnswer with one valid JSON object and nothing else.<|im_end|>")
    assert "Be brief.\n\nAnswer with one valid JSON object" in prompts[1]


@pytest.mark.parametrize(
    ("fields", "limits", "expected"),
    [
        ({}, {}, 2048),
        ({}, {"default_max_tokens": 7}, 7),
        ({}, {"default_max_tokens": "context"}, 2048),
        ({"max_tokens": 9}, {}, 9),
        ({"max_tokens": 9, "max_completion_tokens": 3}, {}, 3),
        ({"max_completion_tokens": 0, "max_tokens": 5}, {}, 0),
        ({"max_tokens": 10**30}, {}, 2048),
        ({"max_tokens": 9}, {"max_output_tokens": 4}, 4),
    ],
)
async def test_output_limit(fields: dict[str, Any], limits: dict[str, Any], expected: int) -> None:
    served = rig(Script(ANSWER), limits=limits)
    await served.chat(**fields)
    assert served.engine.requests[0].max_tokens == expected


async def test_sampling_reaches_the_engine() -> None:
    served = rig(Script(ANSWER))
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "presence_penalty": 1, "seed": -1}
    await served.chat(**fields, frequency_penalty=-1, repetition_penalty=1.2, logprobs=True, top_logprobs=3)
    assert served.engine.requests[0].sampling == SamplingParams(
        seed=2**64 - 1,
        temperature=0.5,
        top_k=20,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        top_logprobs=3,
    )
    assert served.engine.requests[0].stop_token_ids == tiny_frontend().stop_token_ids


async def test_logprobs() -> None:
    served = rig(Script(ids("r", THINK_END, "Yes é", EOS)))
    choice = (await served.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "Yes é"
    assert [entry["logprob"] for entry in content] == [-0.25] * len(content)
    for entry in content:
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
        assert entry["top_logprobs"][1]["logprob"] == -2.0


async def test_logprobs_without_alternatives() -> None:
    choice = (await rig(Script(ANSWER)).chat(logprobs=True)).json()["choices"][0]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


def deltas(frames: list[Any]) -> list[Any]:
    return [frame["choices"][0]["delta"] for frame in frames if frame != "[DONE]" and frame["choices"]]


async def test_stream_order() -> None:
    served = rig(Script(TWO_CALLS, tokens_per_event=100, prefill_chunks=2, cached_tokens=4))
    frames = await served.stream(tools=[BASH], stream_options={"include_usage": True}, return_progress=True)
    assert frames[-1] == "[DONE]"
    assert [delta for delta in deltas(frames) if "tool_calls" not in delta] == [
        {"role": "assistant", "content": ""},
        {},
        {},
        {},
        {"reasoning_content": "r"},
        {"content": "Listing."},
        {},
    ]
    calls = frames[6]["choices"][0]["delta"]["tool_calls"]
    assert [call["index"] for call in calls] == [0, 1]
    assert all(call["function"] == {"name": "Bash", "arguments": '{"command":"ls"}'} for call in calls)
    total = prompt_tokens(served)
    assert [frame["prompt_progress"] for frame in frames[1:4]] == [
        {"total": total, "cache": 4, "processed": 4, "time_ms": 0.0},
        {"total": total, "cache": 4, "processed": 4 + (total - 4) // 2, "time_ms": 1.0},
        {"total": total, "cache": 4, "processed": total, "time_ms": 2.0},
    ]
    finish, usage = frames[-3], frames[-2]
    assert finish["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}]
    assert "timings" not in finish
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(TWO_CALLS)
    assert usage["timings"]["predicted_n"] == len(TWO_CALLS)
    assert all(frame["usage"] is None for frame in frames[:-2])
    assert {(frame["id"], frame["object"], frame["model"]) for frame in frames[:-1]} == {
        (frames[0]["id"], "chat.completion.chunk", MODEL)
    }


async def test_stream_without_usage_has_timings_on_the_finish_chunk() -> None:
    frames = await rig(Script(ANSWER)).stream()
    assert frames[-1] == "[DONE]"
    assert frames[-2]["choices"][0]["finish_reason"] == "stop"
    assert frames[-2]["timings"]["predicted_n"] == len(ANSWER)
    assert not any("usage" in frame for frame in frames[:-1])
    assert not any("timings" in frame for frame in frames[:-2])


async def test_stream_and_aggregate_agree() -> None:
    script = Script(ids("think é", THINK_END, "\n\nSome <tool text. ✓", EOS))
    message = (await rig(script).chat(tools=[BASH])).json()["choices"][0]["message"]
    parts = deltas(await rig(script).stream(tools=[BASH]))
    assert "".join(part.get("content") or "" for part in parts) == message["content"]
    assert "".join(part.get("reasoning_content") or "" for part in parts) == message["reasoning_content"]


async def test_live_timings_count_hidden_tokens_too() -> None:
    frames = await rig(Script(ANSWER)).stream(timings_per_token=True)
    visible = [frame for frame in frames[:-1] if {"content", "reasoning_content"} & set(frame["choices"][0]["delta"])]
    counts = [frame["timings"]["predicted_n"] for frame in visible if "timings" in frame]
    assert len(counts) == len(visible) - 1, "all but the role chunk"
    assert counts == sorted(counts)
    assert counts[-1] == len(ANSWER) - 1, "</think> is counted, the stop token not yet"


async def test_streamed_logprobs_cover_the_answer() -> None:
    frames = await rig(Script(ids("r", THINK_END, "Yes, really.", EOS))).stream(logprobs=True)
    entries = [
        entry
        for frame in frames[:-1]
        if frame["choices"][0]["logprobs"]
        for entry in frame["choices"][0]["logprobs"]["content"]
    ]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"Yes, really."


async def test_stream_headers() -> None:
    response = await rig(Script(ANSWER)).chat(stream=True, verbosity="low")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-ninfer-ignored"] == "verbosity"
    assert "x-request-id" in response.headers


async def test_non_ascii_is_sent_as_it_is() -> None:
    response = await rig(Script(ids(THINK_END, "é✓", EOS))).chat()
    assert "é✓" in response.text
    assert json.loads(response.text)["choices"][0]["message"]["content"] == "é✓"
