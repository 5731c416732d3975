"""The engine loop: commands, heartbeats, shutdown."""

from __future__ import annotations

import queue
from collections.abc import Iterable

import pytest

from ninferd.engine.failures import EngineBroken
from ninferd.engine.loop import EngineLoop
from ninferd.engine.messages import (
    CancelRequest,
    Command,
    Configure,
    EngineEvent,
    GenerationRequest,
    Heartbeat,
    PromptIdentity,
    RequestFailed,
    RequestFinished,
    Shutdown,
    TokensGenerated,
)
from ninferd.models.batch import Batch
from tests.engine.hash_model import expected_tokens
from tests.engine.rig import GREEDY, Rig, prompt_of


class Wire:
    """Commands in, events out, with an optional reaction to what comes out."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.events: list[EngineEvent] = []
        self.react: dict[type[EngineEvent], list[Command]] = {}

    def emit(self, events: Iterable[EngineEvent]) -> None:
        for event in events:
            self.events.append(event)
            for command in self.react.pop(type(event), []):
                self.commands.put(command)

    def of(self, kind: type[EngineEvent]) -> list[EngineEvent]:
        return [event for event in self.events if isinstance(event, kind)]


def _request(name: str, max_tokens: int = 5) -> GenerationRequest:
    return GenerationRequest(name, PromptIdentity.from_token_ids(prompt_of(20, 1)), GREEDY, max_tokens, ())


def test_serves_until_shutdown_and_cancels_what_still_runs() -> None:
    rig, wire = Rig(lanes=1), Wire()
    wire.commands.put(_request("a"))
    wire.commands.put(_request("b", 400))
    wire.commands.put(_request("c"))
    wire.react[RequestFinished] = [Shutdown()]  # when a is done
    EngineLoop(rig.engine, wire.commands, wire.emit).run()
    ends = {event.request_id: event.reason for event in wire.events if isinstance(event, RequestFinished)}
    assert ends == {"a": "length", "b": "cancelled", "c": "cancelled"}
    tokens = [event.token_ids[0] for event in wire.events if isinstance(event, TokensGenerated)]
    assert tokens[:5] == expected_tokens(prompt_of(20, 1), 5)
    rig.assert_empty()


def test_cancel_reaches_a_running_request() -> None:
    rig, wire = Rig(), Wire()
    wire.commands.put(_request("a", 400))
    wire.react[TokensGenerated] = [CancelRequest("a")]
    wire.react[RequestFinished] = [Shutdown()]
    EngineLoop(rig.engine, wire.commands, wire.emit).run()
    (end,) = wire.of(RequestFinished)
    assert isinstance(end, RequestFinished)
    assert end.reason == "cancelled"


def test_an_idle_loop_beats() -> None:
    rig, wire = Rig(), Wire()
    wire.react[Heartbeat] = [_request("a", 1)]
    wire.react[RequestFinished] = [Shutdown()]
    EngineLoop(rig.engine, wire.commands, wire.emit).run()
    assert isinstance(wire.events[0], Heartbeat)
    assert len(wire.of(RequestFinished)) == 1


def test_unexpected_commands_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    rig, wire = Rig(), Wire()
    wire.commands.put(_request("a", 3))
    wire.commands.put(_request("a", 3))
    wire.commands.put(Configure(b"{}"))
    wire.react[RequestFinished] = [Shutdown()]
    EngineLoop(rig.engine, wire.commands, wire.emit).run()
    assert len(wire.of(TokensGenerated)) == 3
    assert "'a' is in use" in caplog.text
    assert "Configure is not expected" in caplog.text


def test_events_of_the_step_that_broke_the_engine_are_sent() -> None:
    rig, wire = Rig(lanes=1), Wire()

    def fail(batch: Batch) -> None:
        raise RuntimeError("always")

    rig.model.before_step = fail
    for name in "abcd":
        wire.commands.put(_request(name))
    with pytest.raises(EngineBroken):
        EngineLoop(rig.engine, wire.commands, wire.emit).run()
    assert [event.request_id for event in wire.events if isinstance(event, RequestFailed)] == ["a", "b", "c"]
