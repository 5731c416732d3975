from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import msgspec
import pytest

from ninferd.daemon.child import EngineLoadError
from ninferd.daemon.supervisor import EngineGaveUpError
from ninferd.engine.messages import (
    LoadProgress,
    RequestAdmitted,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TokensGenerated,
)
from tests.daemon.fake_engine import INFO, STATS, Act
from tests.daemon.support import Observer, Reader, launches, request, run, settings, supervised


def token_ids(events: list[RequestEvent]) -> list[int]:
    return [token for event in events if isinstance(event, TokensGenerated) for token in event.token_ids]


def test_start_reports_progress_and_facts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer()

    async def body() -> None:
        async with supervised(tmp_path, observer=observer) as (supervisor, _):
            assert supervisor.state == "ready"
            assert supervisor.info == INFO
            await Reader(supervisor, request("a", Act.ANSWER)).task  # the heartbeat is sent before any answer
            assert supervisor.stats == STATS

    with caplog.at_level(logging.INFO):
        run(body())
    assert observer.progress == [LoadProgress("weights", 50, 100)]
    assert ("ninferd.engine.fake", logging.INFO, "loading loads") in caplog.record_tuples


def test_generate_yields_events_up_to_the_terminal_one(tmp_path: Path) -> None:
    async def body() -> list[RequestEvent]:
        async with supervised(tmp_path) as (supervisor, _):
            events = await Reader(supervisor, request("a", Act.ANSWER, max_tokens=3)).task
            assert supervisor.requests_in_flight == 0
            return events

    events = run(body())
    assert [type(event) for event in events] == [RequestAdmitted, *[TokensGenerated] * 3, RequestFinished]
    assert token_ids(events) == [0, 1, 2]


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        ("fails", "the artifact is broken (exited with status 1)"),
        ("dies", "the engine was killed by SIGABRT"),
        ("talks-rubbish", "broke the protocol"),
        ("never-ready", r"not ready within daemon.load_timeout_s = 1 s"),
    ],
)
def test_first_load_that_fails_is_reported_and_not_retried(tmp_path: Path, artifact: str, message: str) -> None:
    async def body() -> None:
        async with supervised(tmp_path, settings(artifact, daemon={"load_timeout_s": 1})):
            pytest.fail("started")

    with pytest.raises(EngineLoadError) as caught:
        run(body())
    assert message in str(caught.value)
    assert launches(tmp_path) == [artifact]


def test_request_without_a_token_survives_a_crash(tmp_path: Path) -> None:
    async def body() -> list[RequestEvent]:
        async with supervised(tmp_path) as (supervisor, _):
            waiting = Reader(supervisor, request("waits", Act.WAIT))
            await waiting.wait_for(RequestAdmitted)
            events = await Reader(supervisor, request("a", Act.CRASH_ONCE)).task
            assert supervisor.restarts == 1
            assert supervisor.requests_in_flight == 1, "the one that waits is still there"
            await waiting.close()
            assert supervisor.requests_in_flight == 0
            return events

    events = run(body())
    assert token_ids(events) == [0, 1, 2]
    assert isinstance(events[-1], RequestFinished)
    assert launches(tmp_path) == ["loads", "loads"]


def test_streaming_request_fails_when_the_child_is_killed_and_service_goes_on(tmp_path: Path) -> None:
    async def body() -> list[RequestEvent]:
        async with supervised(tmp_path) as (supervisor, _):
            streaming = Reader(supervisor, request("streams", Act.HOLD))
            await streaming.wait_for(TokensGenerated)
            assert supervisor.child_pid is not None
            os.kill(supervisor.child_pid, signal.SIGKILL)
            events = await streaming.task
            assert isinstance((await Reader(supervisor, request("b", Act.ANSWER)).task)[-1], RequestFinished)
            return events

    failed = run(body())[-1]
    assert isinstance(failed, RequestFailed)
    assert failed.code == "engine_crashed"


def test_gives_up_after_too_many_crashes(tmp_path: Path) -> None:
    observer = Observer()

    async def body() -> None:
        limits = settings(daemon={"engine_max_restarts": 1})
        async with supervised(tmp_path, limits, observer=observer) as (supervisor, watch):
            victim = Reader(supervisor, request("a", Act.CRASH_ALWAYS))
            with pytest.raises(EngineGaveUpError, match=r"1 restarts within 300 s.*exited with status 7") as caught:
                await watch
            assert caught.value.exit_status == 3
            assert supervisor.state == "failed"
            assert not supervisor.is_alive(1e9)
            last = (await victim.task)[-1]
            assert isinstance(last, RequestFailed)
            assert last.code == "unavailable"
            refused = await Reader(supervisor, request("b", Act.ANSWER)).task
            assert [type(event) for event in refused] == [RequestFailed]

    run(body())
    assert launches(tmp_path) == ["loads"] * 2
    assert observer.texts[0] == "engine lost (the engine exited with status 7), restart 1 of 1"


def test_request_that_crashes_every_engine_does_not_end_the_service(tmp_path: Path) -> None:
    async def body() -> RequestEvent:
        async with supervised(tmp_path) as (supervisor, watch):
            last = (await Reader(supervisor, request("a", Act.CRASH_ALWAYS)).task)[-1]
            assert isinstance((await Reader(supervisor, request("b", Act.ANSWER)).task)[-1], RequestFinished)
            assert not watch.done()
            return last

    last = run(body())
    assert isinstance(last, RequestFailed)
    assert last.code == "engine_error"


def test_killed_engine_is_not_said_to_break_the_protocol(tmp_path: Path) -> None:
    observer = Observer()

    async def body() -> None:
        async with supervised(tmp_path, observer=observer) as (supervisor, _):
            # A stopped child leaves the frame unread, so that the kernel resets the connection when it is killed.
            assert supervisor.child_pid is not None
            os.kill(supervisor.child_pid, signal.SIGSTOP)
            waiting = Reader(supervisor, request("a", Act.ANSWER))
            await asyncio.sleep(0)  # the request is written
            supervisor.kill_child()
            await waiting.task

    run(body())
    assert observer.texts[0] == "engine lost (the engine was killed by SIGKILL), restart 1 of 5"


def test_failed_reloads_of_a_crashed_engine_count_as_restarts(tmp_path: Path) -> None:
    async def body() -> None:
        limits = settings("loads-once", daemon={"engine_max_restarts": 2})
        async with supervised(tmp_path, limits) as (supervisor, watch):
            victim = Reader(supervisor, request("a", Act.CRASH_STREAMING))
            with pytest.raises(EngineGaveUpError, match="the disk is gone"):
                await watch
            await victim.task

    run(body())
    assert launches(tmp_path) == ["loads-once"] * 3


def test_closing_the_generator_cancels_in_the_engine(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            reader = Reader(supervisor, request("a", Act.HOLD))
            await reader.wait_for(TokensGenerated)
            await reader.close()
            assert supervisor.requests_in_flight == 0
            # The id is free again, and the fake's confirmation of the cancellation reaches nobody.
            assert isinstance((await Reader(supervisor, request("b", Act.ANSWER)).task)[-1], RequestFinished)

    run(body())


def test_request_id_in_use_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            first = Reader(supervisor, request("a", Act.WAIT))
            await first.wait_for(RequestAdmitted)
            with pytest.raises(ValueError, match="request id a is in use"):
                await Reader(supervisor, request("a", Act.ANSWER)).task
            await first.close()

    run(body())


def test_heartbeat_age_decides_whether_the_engine_is_alive(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            assert supervisor.is_alive(60)
            assert not supervisor.is_alive(-1), "older than allowed"

    run(body())


def test_replace_lets_running_requests_finish_and_keeps_new_ones_waiting(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, settings("loads")) as (supervisor, _):
            running = Reader(supervisor, request("runs", Act.HOLD))
            await running.wait_for(TokensGenerated)
            old_pid = supervisor.child_pid
            change = asyncio.create_task(supervisor.replace(settings("loads", engine={"max_context": 64})))
            late = Reader(supervisor, request("late", Act.ANSWER))
            await asyncio.sleep(0)  # both tasks run up to their first wait
            assert supervisor.state == "restarting"
            await running.close()  # the last running request ends: now the child can go
            await change
            assert isinstance((await late.task)[-1], RequestFinished)
            assert supervisor.child_pid != old_pid

    run(body())


def test_replace_cuts_off_streams_at_the_drain_limit(tmp_path: Path) -> None:
    async def body() -> list[RequestEvent]:
        async with supervised(tmp_path) as (supervisor, _):
            running = Reader(supervisor, request("runs", Act.HOLD))
            await running.wait_for(TokensGenerated)
            await supervisor.replace(settings(server={"drain_s": 0}, engine={"max_context": 64}))
            return await running.task

    last = run(body())[-1]
    assert isinstance(last, RequestFailed)
    assert last.code == "unavailable"
    assert "replaced" in last.message


@pytest.mark.parametrize("bad", ["fails", "dies"])
def test_replace_goes_back_to_the_old_configuration(tmp_path: Path, bad: str) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            with pytest.raises(EngineLoadError):
                await supervisor.replace(settings(bad))
            assert supervisor.state == "ready"
            assert isinstance((await Reader(supervisor, request("a", Act.ANSWER)).task)[-1], RequestFinished)

    run(body())
    assert launches(tmp_path) == ["loads", bad, "loads"]


def test_replace_that_cannot_go_back_falls_to_restarts(tmp_path: Path) -> None:
    async def body() -> None:
        limits = settings("loads-once", daemon={"engine_max_restarts": 1})
        async with supervised(tmp_path, limits) as (supervisor, watch):
            with pytest.raises(EngineLoadError, match="artifact is broken"):
                await supervisor.replace(settings("fails"))
            with pytest.raises(EngineGaveUpError, match="the disk is gone"):
                await watch

    run(body())
    assert launches(tmp_path) == ["loads-once", "fails", "loads-once", "loads-once"]


def test_new_restart_limits_apply_live_and_with_a_replacement(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, watch):
            supervisor.apply_live(settings(daemon={"engine_max_restarts": 9}))
            await supervisor.replace(settings(engine={"max_context": 64}, daemon={"engine_max_restarts": 0}))
            victim = Reader(supervisor, request("a", Act.CRASH_STREAMING))
            with pytest.raises(EngineGaveUpError, match="giving up after 0 restarts"):
                await watch
            await victim.task

    run(body())


def test_failed_replacement_keeps_the_old_restart_limits(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, settings(daemon={"engine_max_restarts": 1})) as (supervisor, _):
            with pytest.raises(EngineLoadError):
                await supervisor.replace(settings("fails", daemon={"engine_max_restarts": 0}))
            await Reader(supervisor, request("a", Act.CRASH_STREAMING)).task
            assert isinstance((await Reader(supervisor, request("b", Act.ANSWER)).task)[-1], RequestFinished)

    run(body())


def assert_model_changed(last: RequestEvent) -> None:
    assert isinstance(last, RequestFailed)
    assert last.code == "unavailable"
    assert "model was replaced" in last.message


def test_requests_tokenized_for_another_model_do_not_reach_the_new_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            waiting = Reader(supervisor, request("waits", Act.WAIT))
            await waiting.wait_for(RequestAdmitted)
            change = asyncio.create_task(supervisor.replace(settings("loads-another", server={"drain_s": 0})))
            during = Reader(supervisor, request("during", Act.ANSWER))
            await change
            after = Reader(supervisor, request("after", Act.ANSWER))  # prepared before the change, late to arrive
            for reader in (waiting, during, after):
                assert_model_changed((await reader.task)[-1])
            assert supervisor.requests_in_flight == 0
            retried = msgspec.structs.replace(request("again", Act.ANSWER), model_identity="another")
            assert isinstance((await Reader(supervisor, retried).task)[-1], RequestFinished)

    run(body())


def test_waiting_requests_survive_a_model_that_does_not_load(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, _):
            change = asyncio.create_task(supervisor.replace(settings("fails")))
            waiting = Reader(supervisor, request("waits", Act.ANSWER))
            with pytest.raises(EngineLoadError):
                await change
            assert isinstance((await waiting.task)[-1], RequestFinished)

    run(body())


def test_drain_waits_for_running_requests_and_refuses_new_ones(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path) as (supervisor, watch):
            running = Reader(supervisor, request("runs", Act.HOLD))
            await running.wait_for(TokensGenerated)
            drain = asyncio.create_task(supervisor.drain(60))
            await asyncio.sleep(0)  # the drain runs up to its first wait
            assert supervisor.state == "draining"
            refused = await Reader(supervisor, request("late", Act.ANSWER)).task
            assert [type(event) for event in refused] == [RequestFailed]
            assert not drain.done()
            await running.close()
            await drain
            await supervisor.stop()
            await watch

    run(body())


def test_drain_cancels_what_does_not_finish_in_time(tmp_path: Path) -> None:
    async def body() -> RequestEvent:
        async with supervised(tmp_path) as (supervisor, _):
            running = Reader(supervisor, request("runs", Act.HOLD))
            await running.wait_for(TokensGenerated)
            await supervisor.drain(0)
            return (await running.task)[-1]

    last = run(body())
    assert isinstance(last, RequestFinished)
    assert last.reason == "cancelled"


def test_crash_while_draining_is_not_restarted(tmp_path: Path) -> None:
    async def body() -> RequestEvent:
        async with supervised(tmp_path) as (supervisor, watch):
            running = Reader(supervisor, request("runs", Act.HOLD))
            await running.wait_for(TokensGenerated)
            drain = asyncio.create_task(supervisor.drain(60))
            await asyncio.sleep(0)  # the drain runs up to its first wait
            assert supervisor.state == "draining"
            supervisor.kill_child()
            await asyncio.gather(drain, watch)
            return (await running.task)[-1]

    assert isinstance(run(body()), RequestFailed)
    assert launches(tmp_path) == ["loads"]
