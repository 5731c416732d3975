from __future__ import annotations

import asyncio

import pytest

from ninferd.daemon.requests import MAX_ENGINES_LOST, RequestTable, TrackedRequest
from ninferd.engine.messages import RequestAdmitted, RequestFailed, RequestTimings, TokensGenerated
from tests.daemon.fake_engine import Act
from tests.daemon.support import request, run


def test_pending_time_runs_out_while_no_engine_has_the_request() -> None:
    async def body() -> None:
        table = RequestTable()
        tracked = table.add(request("a", Act.WAIT, pending_timeout_ms=1))
        failed = await tracked.events.get()
        assert isinstance(failed, RequestFailed)
        assert failed.code == "queue_timeout"
        assert len(table) == 0

    run(body())


def test_pending_time_is_the_engines_matter_once_it_has_the_request() -> None:
    async def body() -> None:
        table = RequestTable()
        tracked = table.add(request("a", Act.WAIT, pending_timeout_ms=1))
        tracked.sent = True
        later = table.add(request("b", Act.WAIT, pending_timeout_ms=2))
        await later.events.get()  # its time came after that of the first
        assert tracked.events.empty()
        assert len(table) == 1

    run(body())


@pytest.mark.parametrize(
    ("deadline_s", "left_ms"),
    [(None, None), (12.0, 2000), (10.0004, 1), (9.0, 1)],
    ids=["none", "rest", "last", "over"],
)
def test_submission_carries_what_is_left_of_the_pending_time(deadline_s: float | None, left_ms: int | None) -> None:
    async def body() -> None:
        tracked = TrackedRequest(request("a", Act.WAIT, pending_timeout_ms=30_000), deadline_s)
        assert tracked.for_submission(now_s=10.0).pending_timeout_ms == left_ms

    run(body())


def test_admission_ends_the_pending_time() -> None:
    async def body() -> None:
        table = RequestTable()
        tracked = table.add(request("a", Act.WAIT, pending_timeout_ms=60_000))
        table.deliver(RequestAdmitted("a", 0, 0.0))
        assert tracked.for_submission(0.0).pending_timeout_ms is None

    run(body())


def test_lost_child_fails_only_what_the_client_may_have_seen() -> None:
    async def body() -> None:
        table = RequestTable()
        streaming, admitted, waiting = (table.add(request(name, Act.WAIT)) for name in ("s", "a", "w"))
        streaming.sent = admitted.sent = True
        table.deliver(TokensGenerated("s", (1,), None, RequestTimings()))
        table.deliver(RequestAdmitted("a", 0, 0.0))
        table.child_crashed("gone")
        assert table.unsent() == [admitted, waiting], "in order of arrival"
        assert table.sent() == []
        streaming.events.get_nowait()
        assert streaming.events.get_nowait() == RequestFailed("s", "engine_crashed", "gone")

    run(body())


def test_request_that_sees_every_engine_crash_is_not_tried_for_ever() -> None:
    async def body() -> None:
        table = RequestTable()
        suspect, bystander = (table.add(request(name, Act.WAIT)) for name in ("s", "b"))
        for _ in range(MAX_ENGINES_LOST - 1):
            suspect.sent = True
            table.child_crashed("gone")
        assert table.unsent() == [suspect, bystander]
        suspect.sent = bystander.sent = True
        table.child_crashed("gone")
        assert table.unsent() == [bystander]
        failed = suspect.events.get_nowait()
        assert isinstance(failed, RequestFailed)
        assert (failed.code, f"{MAX_ENGINES_LOST} times" in failed.message) == ("engine_error", True)

    run(body())


def test_event_of_a_forgotten_request_is_dropped() -> None:
    async def body() -> None:
        table = RequestTable()
        tracked = table.add(request("a", Act.WAIT))
        assert table.remove(tracked)
        assert not table.remove(tracked)
        table.deliver(RequestAdmitted("a", 0, 0.0))
        assert tracked.events.empty()

    run(body())


def test_wait_until_times_out() -> None:
    async def body() -> None:
        table = RequestTable()
        table.add(request("a", Act.WAIT))
        assert not await table.wait_until(lambda: len(table) == 0, timeout_s=0)
        waiter = asyncio.create_task(table.wait_until(lambda: len(table) == 0, timeout_s=60))
        table.fail_all("unavailable", "over")
        assert await waiter

    run(body())
