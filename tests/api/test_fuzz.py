"""No request body makes the server fail: anything is answered with 200 or a refusal of the client."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.harness import ANSWER, Rig, body
from tests.support.scripted_engine import Script, ScriptedEngine

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HUGE = st.sampled_from([10**30, -(10**30), 1e300, -1, 0, 2**63, 2**64])
TEXT = st.text(max_size=12) | st.sampled_from(["<|im_start|>", "</think>", "", "\x00", "\ud7ff\ue000"])

PART = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "refusal", "video_url"]) | JSON,
        "text": TEXT | JSON,
        "image_url": JSON,
        "prompt_cache_breakpoint": JSON,
    },
)
ARGUMENTS = st.sampled_from(["{}", "", '{"a":1e400}', '{"a":1e2}']) | TEXT
CALL = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXT | JSON,
        "type": st.just("function") | JSON,
        "function": st.fixed_dictionaries(
            {"name": TEXT, "arguments": st.sampled_from(["{}", "", '{"a":1e400}']) | TEXT}
        )
        | JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]) | JSON,
        "content": TEXT | st.lists(PART, max_size=3) | JSON,
        "name": TEXT | JSON,
        "tool_calls": st.lists(CALL, max_size=2) | JSON,
        "tool_call_id": TEXT | JSON,
        "reasoning_content": TEXT | JSON,
        "reasoning": TEXT | JSON,
        "function_call": JSON,
        "audio": JSON,
    },
)
TOOL = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("function") | JSON,
        "function": st.fixed_dictionaries(
            {"name": st.just("f") | TEXT}, optional={"parameters": JSON, "strict": JSON, "description": TEXT}
        )
        | JSON,
    },
)
TOOL_CHOICE = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "allowed_tools"]), "function": JSON, "tools": JSON, "mode": JSON}
)
NUMBERS = (
    "max_tokens max_completion_tokens temperature top_p top_k min_p seed n presence_penalty repetition_penalty "
    "top_logprobs thinking_budget"
)
OTHERS = (
    "stream logprobs enable_thinking parallel_tool_calls return_progress store reasoning_effort stream_options "
    "response_format logit_bias verbosity grammar mm_processor_kwargs function_call user prompt_cache_options "
    "post_thinking"
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("ninfer-tiny") | JSON,
        "messages": st.lists(MESSAGE, max_size=4) | JSON,
        "tools": st.lists(TOOL, max_size=2) | JSON,
        "tool_choice": st.sampled_from(["auto", "none", "required"])
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["function", "allowed_tools"]), "function": JSON, "tools": JSON}
        )
        | JSON,
        "chat_template_kwargs": st.dictionaries(st.sampled_from(["enable_thinking", "x", "tools"]), JSON) | JSON,
        "stop": TEXT | st.lists(TEXT, max_size=5) | JSON,
        **dict.fromkeys(
            (
                "max_tokens",
                "max_completion_tokens",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "seed",
                "n",
                "presence_penalty",
                "repetition_penalty",
                "top_logprobs",
                "thinking_budget",
            ),
            HUGE | JSON,
        ),
        **dict.fromkeys(NUMBERS.split(), HUGE | JSON),
        **dict.fromkeys(OTHERS.split(), st.booleans() | JSON),
    },
)


def status_of(request: dict[str, Any] | bytes) -> int:
    async def send() -> int:
        rig = Rig(ScriptedEngine([Script(ANSWER)]))
        async with rig.client() as client:
            options: dict[str, Any] = {"content": request} if isinstance(request, bytes) else {"json": request}
            response = await client.post("/v1/chat/completions", **options)
        if response.status_code == 200:
            assert '"error"' not in response.text, response.text
        assert rig.context.in_flight.count == 0
        return response.status_code

    return asyncio.run(send())


@settings(max_examples=300, deadline=None)
@given(FIELDS)
def test_any_fields(fields: dict[str, Any]) -> None:
    assert status_of({**body(), **fields}) in (200, 400, 404)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40) | JSON.map(lambda value: str(value).encode("utf-8", "replace")))
def test_any_bytes(content: bytes) -> None:
    assert status_of(content) == 400


def test_escaped_surrogates() -> None:
    for escape in (rb"\ud800", rb"\udc00", rb"\ud800x", rb"\ud800\ud800", rb"\ud83d\ude00"):
        content = b'{"model":"ninfer-tiny","messages":[{"role":"user","content":"' + escape + b'"}]}'
        assert status_of(content) in (200, 400)
