from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ninferd.chat.conversation import Conversation, Message
from ninferd.chat.errors import GenerationFailedError
from ninferd.chat.generation import Finish, Generation, GenerationEvent, GenerationPlan, Usage
from ninferd.chat.output import ContentDelta, ReasoningDelta
from ninferd.engine.messages import FinishReason, RequestAdmitted, SamplingParams
from ninferd.weights.identity import model_identity
from tests.chat.test_output import CLOSE, EOS, ids
from tests.support.frontends import make_settings, tiny_directory, tiny_frontend
from tests.support.scripted_engine import Script, ScriptedEngine

FRONTEND = tiny_frontend()
PROMPT = FRONTEND.prepare(Conversation((Message("user", "q"),)), make_settings(), max_context=1000)
ANSWER = ids("why", CLOSE, "Because of it.", EOS)


def plan(**changes: Any) -> GenerationPlan:
    return GenerationPlan(
        **{"request_id": "r", "prompt": PROMPT, "sampling": SamplingParams(0), "max_tokens": 99, **changes}
    )


def collect(engine: ScriptedEngine, wanted: GenerationPlan) -> list[GenerationEvent]:
    async def run() -> list[GenerationEvent]:
        return [event async for event in Generation(engine, FRONTEND, wanted).events(1234)]

    return asyncio.run(run())


def text(events: list[GenerationEvent]) -> tuple[str, str]:
    return (
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "".join(event.text for event in events if isinstance(event, ContentDelta)),
    )


@pytest.mark.parametrize("tokens_per_event", [1, 2, 100])
def test_events_of_an_answer(tokens_per_event: int) -> None:
    engine = ScriptedEngine([Script(ANSWER, tokens_per_event=tokens_per_event, cached_tokens=3)])
    events = collect(engine, plan())
    assert isinstance(events[0], RequestAdmitted)
    assert text(events) == ("why", "Because of it.")
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "stop"
    assert finish.usage == Usage(len(PROMPT), 3, len(ANSWER), len(ids("why")) + 1)
    assert finish.timings.generated_tokens == len(ANSWER)
    assert engine.cancelled == []


def test_request_carries_the_stop_tokens_the_deadline_and_its_model() -> None:
    engine = ScriptedEngine([Script(ANSWER)])
    collect(engine, plan(max_tokens=5))
    request = engine.requests[0]
    assert (request.stop_token_ids, request.pending_timeout_ms, request.max_tokens) == (
        FRONTEND.stop_token_ids,
        1234,
        5,
    )
    assert request.prompt == PROMPT.identity
    assert request.model_identity == model_identity(tiny_directory())


@pytest.mark.parametrize("tokens_per_event", [1, 100])
def test_stop_string_cancels_the_rest(tokens_per_event: int) -> None:
    engine = ScriptedEngine([Script(ANSWER, tokens_per_event=tokens_per_event)])
    events = collect(engine, plan(stop=(" of",)))
    assert text(events) == ("why", "Because")
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.completion_tokens) == ("stop", len(ids("why", CLOSE, "Because of")))
    assert engine.cancelled == ["r"]


def test_length() -> None:
    finish = collect(ScriptedEngine([Script(ANSWER)]), plan(max_tokens=2))[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.completion_tokens) == ("length", 2)


def test_zero_tokens() -> None:
    events = collect(ScriptedEngine([Script(ANSWER)]), plan(max_tokens=0))
    assert isinstance(events[-1], Finish)
    assert text(events) == ("", "")


def test_failure_of_the_engine() -> None:
    with pytest.raises(GenerationFailedError, match="scripted failure") as caught:
        collect(ScriptedEngine([Script(ANSWER, failure="engine_crashed", fail_after_tokens=2)]), plan())
    assert caught.value.code == "engine_crashed"


@pytest.mark.parametrize("reason", ["cancelled"])
def test_end_that_nobody_asked_for_is_a_failure(reason: FinishReason) -> None:
    with pytest.raises(GenerationFailedError) as caught:
        collect(ScriptedEngine([Script(ids("why"), reason=reason)]), plan())
    assert caught.value.code == "unavailable"


def test_closing_cancels_in_the_engine() -> None:
    engine = ScriptedEngine([Script(ANSWER)])

    async def run() -> None:
        events = Generation(engine, FRONTEND, plan()).events()
        await anext(events)
        await events.aclose()

    asyncio.run(run())
    assert engine.cancelled == ["r"]
