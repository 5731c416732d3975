"""Limits, deadlines, failures and clients that leave, at every stage of a request."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from ninferd.api import chat_answer
from ninferd.api.limits import MAX_DISCARDED_BYTES
from ninferd.chat.frontend import ChatFrontend
from ninferd.config.schema import Settings
from ninferd.engine.messages import FailureCode
from tests.api.harness import ANSWER, RawCall, Rig, body, frames_of, ids, start_chat
from tests.support.frontends import make_settings
from tests.support.scripted_engine import Script, ScriptedEngine

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def rig(*scripts: Script, settings: Settings | None = None) -> Rig:
    return Rig(ScriptedEngine(list(scripts)), settings or make_settings())


def error_of(call: RawCall) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(call.text)["error"]
    return error


async def test_far_too_large_body_is_refused_before_it_is_read() -> None:
    served = rig(Script(ANSWER), settings=make_settings(limits={"max_request_mib": 1}))
    call = RawCall(served.app, {"content-length": str(MIB + MAX_DISCARDED_BYTES + 1)})
    await call.task
    assert (call.status, error_of(call)["code"]) == (413, "request_too_large")


async def test_announced_body_is_refused_when_the_client_has_sent_it() -> None:
    served = rig(Script(ANSWER), settings=make_settings(limits={"max_request_mib": 1}))
    call = RawCall(served.app, {"content-length": str(MIB + 1)})
    call.send_body(b" " * MIB, more=True)
    call.send_body(b" ")
    await call.task
    assert (call.status, error_of(call)["code"]) == (413, "request_too_large")


async def test_unannounced_body_is_counted() -> None:
    served = rig(Script(ANSWER), settings=make_settings(limits={"max_request_mib": 1}))
    call = RawCall(served.app)
    call.send_body(b" " * MIB, more=True)
    call.send_body(b" ", more=True)
    call.send_body(json.dumps(body()).encode())
    await call.task
    assert (call.status, error_of(call)["type"]) == (413, "invalid_request_error")


async def test_endless_body_is_not_read_for_ever() -> None:
    served = rig(Script(ANSWER), settings=make_settings(limits={"max_request_mib": 1}))
    call = RawCall(served.app)
    for _ in range(1 + MAX_DISCARDED_BYTES // MIB):
        call.send_body(MIB * b" ", more=True)
    call.send_body(b" ", more=True)
    await call.task
    assert call.status == 413


@pytest.mark.parametrize("length", ["abc", "-5", "9" * 5000, ""])
async def test_senseless_length_is_not_believed(length: str) -> None:
    served = rig(Script(ANSWER))
    call = RawCall(served.app, {"content-length": length})
    call.send_body(json.dumps(body()).encode())
    await call.task
    assert call.status == 200


async def test_body_of_exactly_the_limit() -> None:
    served = rig(Script(ANSWER), settings=make_settings(limits={"max_request_mib": 1}))
    call = RawCall(served.app, {"content-length": str(MIB)})
    content = json.dumps(body()).encode()
    call.send_body(content, more=True)
    call.send_body(b" " * (MIB - len(content)))
    await call.task
    assert call.status == 200


async def test_more_requests_than_running_and_pending_places() -> None:
    gate = asyncio.Event()
    settings = make_settings(engine={"max_concurrency": 2}, queue={"max_pending": 1})
    served = rig(Script(ANSWER, admit=gate), settings=settings)
    calls = [start_chat(served) for _ in range(3)]
    await served.engine.wait_requests(3)
    refused = await served.chat()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "server_overloaded")
    assert served.context.in_flight.count == 3
    gate.set()
    await asyncio.gather(*(call.task for call in calls))
    assert [call.status for call in calls] == [200] * 3
    await served.context.in_flight.wait_idle()
    assert served.context.in_flight.count == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_admission_later_than_the_deadline(stream: bool) -> None:
    served = rig(Script(ANSWER, admit=asyncio.Event()), settings=make_settings(queue={"pending_timeout_ms": 20}))
    response = await served.chat(stream=stream)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "request_queue_timeout")
    assert len(served.engine.cancelled) == len(served.engine.requests)
    assert served.context.in_flight.count == 0


async def test_slow_upload_counts_against_the_deadline() -> None:
    served = rig(Script(ANSWER), settings=make_settings(queue={"pending_timeout_ms": 20}))
    call = RawCall(served.app)
    call.send_body(b"{", more=True)
    await call.task
    assert (call.status, error_of(call)["code"]) == (503, "request_queue_timeout")


async def test_deadline_is_passed_on_to_the_engine() -> None:
    served = rig(Script(ANSWER))
    await served.chat()
    timeout_ms = served.engine.requests[0].pending_timeout_ms
    assert timeout_ms is not None
    assert 0 < timeout_ms <= 30_000


async def test_deadline_after_the_200_is_an_error_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_answer, "HOLD_STATUS_S", 0.0)
    served = rig(Script(ANSWER, admit=asyncio.Event()), settings=make_settings(queue={"pending_timeout_ms": 50}))
    frames = frames_of((await served.chat(stream=True)).text)
    assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
    assert frames[-1]["error"]["code"] == "request_queue_timeout"
    assert "[DONE]" not in frames


async def test_status_is_held_until_admission() -> None:
    gate = asyncio.Event()
    served = rig(Script(ANSWER, admit=gate))
    call = start_chat(served, stream=True)
    await served.engine.wait_requests()
    assert call.sent == []
    gate.set()
    await call.task
    assert call.status == 200


async def test_status_is_not_held_for_longer_than_the_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_answer, "HOLD_STATUS_S", 0.0)
    gate = asyncio.Event()
    call = start_chat(rig(Script(ANSWER, admit=gate)), stream=True)
    await call.wait_sent(2)
    assert call.status == 200
    gate.set()
    await call.task
    assert call.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        ("queue_timeout", 503, "request_queue_timeout"),
        ("prompt_too_long", 400, "context_length_exceeded"),
        ("capacity_impossible", 400, "context_length_exceeded"),
        ("invalid_request", 400, None),
        ("engine_error", 503, "service_unavailable"),
        ("engine_crashed", 503, "service_unavailable"),
        ("unavailable", 503, "service_unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_failure_before_the_first_byte_is_a_status(
    failure: FailureCode, status: int, code: str | None, stream: bool
) -> None:
    response = await rig(Script(ANSWER, failure=failure)).chat(stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_whole_answer_is_tried_again_when_the_engine_crashed_under_it() -> None:
    served = rig(Script(ANSWER, failure="engine_crashed", fail_after_tokens=2), Script(ANSWER))
    response = await served.chat()
    assert response.json()["choices"][0]["message"]["content"] == "Because."
    first, second = served.engine.requests
    assert first.prompt == second.prompt
    assert first.sampling == second.sampling, "a seeded answer stays the same"


async def test_whole_answer_is_tried_again_once_only() -> None:
    served = rig(Script(ANSWER, failure="engine_crashed", fail_after_tokens=2))
    assert (await served.chat()).status_code == 503
    assert len(served.engine.requests) == 2


async def test_failure_in_the_middle_is_the_last_frame() -> None:
    served = rig(Script(ANSWER, failure="engine_crashed", fail_after_tokens=2))
    frames = await served.stream()
    assert frames[-1] == {
        "error": {
            "message": "scripted failure",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }
    assert "[DONE]" not in frames
    assert (await rig(Script(ANSWER, failure="engine_crashed", fail_after_tokens=2)).chat()).status_code == 503


async def test_bug_in_the_middle_is_an_error_frame_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(chat_answer, "timings_of", broken)
    frames = await rig(Script(ANSWER)).stream()
    assert frames[-1]["error"]["code"] == "internal_error"


async def test_comments_fill_silence() -> None:
    gate = asyncio.Event()
    settings = make_settings()
    quick = settings.model_copy(update={"http": settings.http.model_copy(update={"keepalive_comment_s": 0.001})})
    served = rig(Script(ANSWER, decode=gate, free_tokens=1), settings=quick)
    call = start_chat(served, stream=True)
    while ": keep-alive" not in call.text:
        await call.wait_sent(len(call.sent) + 1)
    gate.set()
    await call.task
    frames = frames_of(call.text)
    assert frames.count(": keep-alive") >= 1
    assert frames[-1] == "[DONE]"


async def test_no_comments_while_tokens_flow() -> None:
    assert ": keep-alive" not in await rig(Script(ANSWER)).stream()


async def test_client_leaves_while_sending_its_body() -> None:
    served = rig(Script(ANSWER))
    call = RawCall(served.app)
    call.send_body(b"{", more=True)
    call.disconnect()
    await call.task
    assert (call.sent, served.engine.requests, served.context.in_flight.count) == ([], [], 0)


async def test_client_leaves_while_queued() -> None:
    served = rig(Script(ANSWER, admit=asyncio.Event()))
    call = start_chat(served)
    await served.engine.wait_requests()
    call.disconnect()
    await call.task
    assert served.engine.cancelled == [served.engine.requests[0].request_id]
    assert (call.sent, served.context.in_flight.count) == ([], 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_leaves_while_tokens_are_generated(stream: bool) -> None:
    served = rig(Script(ids("a b c d e f"), decode=asyncio.Event(), free_tokens=2))
    call = start_chat(served, stream=stream)
    if stream:
        await call.wait_sent(3)
    else:
        await served.engine.wait_requests()
    call.disconnect()
    await call.task
    assert served.engine.cancelled == [served.engine.requests[0].request_id]
    assert served.context.in_flight.count == 0
    assert "[DONE]" not in call.text


async def test_client_leaves_during_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread cannot be stopped, but its result is not used."""
    entered, leave = threading.Event(), threading.Event()
    original = ChatFrontend.prepare

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        leave.wait(10)
        return original(*args, **options)

    monkeypatch.setattr(ChatFrontend, "prepare", slow)
    served = rig(Script(ANSWER))
    call = start_chat(served)
    await asyncio.to_thread(entered.wait, 10)
    call.disconnect()
    await call.task
    leave.set()
    assert (served.engine.requests, served.context.in_flight.count) == ([], 0)


async def test_shutdown_cancels_the_request() -> None:
    served = rig(Script(ANSWER, admit=asyncio.Event()))
    call = start_chat(served)
    await served.engine.wait_requests()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert served.engine.cancelled == [served.engine.requests[0].request_id]
    assert served.context.in_flight.count == 0


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "ninferd.requests")
    return caplog


async def test_log_of_a_request(log: pytest.LogCaptureFixture) -> None:
    messages = [{"role": "user", "content": "topsecretquestion"}]
    tool = {"type": "function", "function": {"name": "f"}}
    served = Rig(ScriptedEngine([Script(ANSWER, cached_tokens=4)]), keys={"ann": "topsecretkey"})
    async with served.client() as client:
        await client.post(
            "/v1/chat/completions",
            json=body(messages=messages, tools=[tool], max_tokens=1234, stream=True),
            headers={"x-api-key": "topsecretkey"},
        )
    started, done = (record.getMessage() for record in log.records)
    number = started.split()[0]
    assert (
        started
        == f"{number} started | openai-chat stream | 1 messages | max output 1,234 | thinking on | tools 1 | key ann"
    )
    total = len(served.engine.requests[0].prompt)
    assert done.startswith(
        f"{number} done | openai-chat | prompt {total} | output {len(ANSWER)} | cache 4 ({4 / total:.1%}) | TTFT "
    )
    assert "decode 100.0 tok/s" in done
    assert "topsecret" not in log.text
    assert "Because" not in log.text


@pytest.mark.parametrize(
    ("script", "fields", "line", "level"),
    [
        (Script(ANSWER), {"n": 2}, "rejected during prepare | openai-chat | HTTP 400 | n not supported | n", "INFO"),
        (
            Script(failure="unavailable"),
            {},
            "failed during queue | openai-chat | HTTP 503 | service unavailable",
            "WARNING",
        ),
        (
            Script(ANSWER, failure="engine_crashed", fail_after_tokens=1),
            {},
            "failed during generation | openai-chat | HTTP 503 | service unavailable",
            "WARNING",
        ),
    ],
)
async def test_log_of_failures(
    log: pytest.LogCaptureFixture, script: Script, fields: dict[str, Any], line: str, level: str
) -> None:
    await rig(script).chat(**fields)
    assert log.records[-1].getMessage().partition(" ")[2] == line
    assert log.records[-1].levelname == level


async def test_log_of_a_cancelled_request(log: pytest.LogCaptureFixture) -> None:
    served = rig(Script(ANSWER, admit=asyncio.Event()))
    call = start_chat(served)
    await served.engine.wait_requests()
    call.disconnect()
    await call.task
    assert log.records[-1].getMessage().endswith("cancelled during queue | openai-chat | client disconnected")
