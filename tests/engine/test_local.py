"""``LocalEngine`` as an ``EngineClient``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from ninferd.engine.client import EngineClient
from ninferd.engine.engine import Engine
from ninferd.engine.local import LocalEngine
from ninferd.engine.messages import (
    GenerationRequest,
    LoadProgress,
    PromptIdentity,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TokensGenerated,
)
from ninferd.errors import InputError
from ninferd.models.batch import Batch
from tests.engine.hash_model import expected_tokens
from tests.engine.rig import GREEDY, Rig, prompt_of


def _request(name: str, salt: int = 1, max_tokens: int = 10) -> GenerationRequest:
    return GenerationRequest(name, PromptIdentity.from_token_ids(prompt_of(30, salt)), GREEDY, max_tokens, ())


def _client(rig: Rig, seen: list[LoadProgress] | None = None) -> LocalEngine:
    def build(on_progress: Callable[[LoadProgress], None]) -> Engine:
        on_progress(LoadProgress("weights", 1, 1))
        return rig.engine

    return LocalEngine(build, (seen if seen is not None else []).append)


async def _collect(client: EngineClient, request: GenerationRequest) -> list[RequestEvent]:
    return [event async for event in client.generate(request)]


def _tokens(events: list[RequestEvent]) -> list[int]:
    return [token for event in events if isinstance(event, TokensGenerated) for token in event.token_ids]


def _run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(scenario)


def test_requests_run_together_and_each_gets_its_own_events() -> None:
    async def scenario() -> None:
        rig, progress = Rig(), list[LoadProgress]()
        async with _client(rig, progress) as client:
            states = [client.state]
            assert client.info == rig.engine.info
            assert progress == [LoadProgress("weights", 1, 1)]
            results = await asyncio.gather(*(_collect(client, _request(f"r{salt}", salt)) for salt in range(6)))
            for salt, events in enumerate(results):
                assert _tokens(events) == expected_tokens(prompt_of(30, salt), 10)
                assert isinstance(events[-1], RequestFinished)
        rig.assert_empty()
        assert [*states, client.state] == ["ready", "draining"]

    _run(scenario())


def test_closing_the_generator_cancels() -> None:
    async def scenario() -> None:
        rig = Rig(lanes=1)
        async with _client(rig) as client:
            stream = client.generate(_request("a", max_tokens=480))
            async for event in stream:
                if isinstance(event, TokensGenerated):
                    break
            await stream.aclose()
            assert _tokens(await _collect(client, _request("b"))) == expected_tokens(prompt_of(30, 1), 10)
        assert rig.engine.stats().requests_cancelled == 1

    _run(scenario())


def test_an_id_in_use_is_refused() -> None:
    async def scenario() -> None:
        async with _client(Rig()) as client:
            stream = client.generate(_request("a", max_tokens=480))
            await anext(stream)
            with pytest.raises(ValueError, match="in use"):
                await anext(client.generate(_request("a")))
            await stream.aclose()

    _run(scenario())


def test_a_failed_load_is_raised() -> None:
    def build(_: Callable[[LoadProgress], None]) -> Engine:
        raise InputError("config.json: no such file")

    async def scenario() -> None:
        client = LocalEngine(build)
        with pytest.raises(InputError, match=r"config\.json"):
            async with client:
                pass
        assert client.state == "failed"

    _run(scenario())


def test_a_broken_engine_ends_running_streams_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        rig = Rig(lanes=1)

        def fail(batch: Batch) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        rig.model.before_step = fail
        async with _client(rig) as client:
            running, waiting = await asyncio.gather(*(_collect(client, _request(name)) for name in "ab"))
            assert client.state == "failed"
            late = await _collect(client, _request("c"))
        for events, code in ((running, "engine_crashed"), (waiting, "engine_crashed"), (late, "unavailable")):
            assert isinstance(events[-1], RequestFailed)
            assert events[-1].code == code

    _run(scenario())
