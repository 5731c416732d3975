"""Frames: round trips in any fragmentation; truncation, oversize and garbage end in a FrameError and nothing else."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.engine import frames
from ninferd.engine.messages import (
    CancelRequest,
    Command,
    Configure,
    EngineEvent,
    EngineFailed,
    EngineInfo,
    EngineReady,
    EngineStats,
    GenerationRequest,
    Heartbeat,
    LoadProgress,
    LogLine,
    PrefillProgress,
    PromptIdentity,
    RequestAdmitted,
    RequestFailed,
    RequestFinished,
    RequestTimings,
    SamplingParams,
    Shutdown,
    TokenLogprob,
    TokenLogprobs,
    TokensGenerated,
)

REQUEST = GenerationRequest(
    "r1", PromptIdentity.from_token_ids([1, 2**31 - 1], "key"), SamplingParams(seed=2**64 - 1), 5, (7, 8), 100
)
COMMANDS: list[Command] = [Configure(b'{"engine": {}}'), REQUEST, CancelRequest("r1"), Shutdown()]
INFO = EngineInfo("m", "qwen3_5", "cpu", "float32", "bf16", 97, 512, 2, 1024, 64, 2, 1, 2, 3, 0.5)
EVENTS: list[EngineEvent] = [
    LoadProgress("weights", 1, 2**40),
    EngineReady(INFO),
    EngineFailed("bad checkpoint: ünïcode"),
    Heartbeat(EngineStats(*range(14))),
    LogLine(20, "ninferd", "line"),
    RequestAdmitted("r1", 3, 1.5),
    PrefillProgress("r1", 64, 128, 0, 2.5),
    TokensGenerated(
        "r1", (1, 2), (TokenLogprobs(TokenLogprob(1, -0.5), (TokenLogprob(1, -0.5),)),) * 2, RequestTimings(1.0)
    ),
    RequestFinished("r1", "stop", RequestTimings()),
    RequestFailed("r1", "queue_timeout", "too late"),
]


@pytest.mark.parametrize("step", [1, 3, 7, 1 << 20])
def test_messages_survive_any_fragmentation(step: int) -> None:
    for decoder, messages in ((frames.decode_commands(), COMMANDS), (frames.decode_events(), EVENTS)):
        data = b"".join(map(frames.encode, messages))
        decoded: list[object] = []
        for start in range(0, len(data), step):
            decoded += decoder.feed(data[start : start + step])
        decoder.close()
        assert decoded == messages


def test_frame_layout() -> None:
    body = msgspec.msgpack.encode({"type": "cancel", "request_id": "x"})
    assert frames.encode(CancelRequest("x")) == len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
def test_truncation_is_seen_at_the_end_of_the_stream(cut: int) -> None:
    decoder = frames.decode_commands()
    assert decoder.feed(frames.encode(REQUEST)[:cut]) == []
    with pytest.raises(frames.FrameError, match=f"{cut} bytes left over"):
        decoder.close()


def test_announced_oversize_is_refused_before_its_body() -> None:
    decoder = frames.decode_events()
    with pytest.raises(frames.FrameError, match="announced"):
        decoder.feed((frames.MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_an_oversized_message_is_not_sent() -> None:
    with pytest.raises(frames.FrameError, match=r"Configure of 6710.* exceeds"):
        frames.encode(Configure(b"x" * frames.MAX_FRAME_BYTES))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "request_id": 5}),
        msgspec.msgpack.encode({"type": "ready"}),
        msgspec.msgpack.encode({"type": "cancel", "request_id": "x"}) + b"\x00",
        b"\x82\xa4type\xa6cancel\xaarequest_id\xa1\xff",
        b"\x91" * 100_000,
    ],
    ids=["empty", "reserved", "nil", "tag", "field", "kind", "direction", "trailing", "utf8", "nesting"],
)
def test_undecodable_bodies_are_frame_errors(body: bytes) -> None:
    with pytest.raises(frames.FrameError, match="undecodable"):
        frames.decode_commands().feed(len(body).to_bytes(4, "little") + body)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 250), st.sampled_from([frames.encode(m) for m in (*COMMANDS, *EVENTS)]))
def test_garbage_never_raises_anything_else(garbage: bytes, at: int, frame: bytes) -> None:
    """Noise alone, and noise written over a valid frame."""
    damaged = frame[:at] + garbage + frame[at + len(garbage) :]
    for data in (garbage, len(garbage).to_bytes(4, "little") + garbage, damaged):
        for decoder in (frames.decode_commands(), frames.decode_events()):
            with contextlib.suppress(frames.FrameError):
                decoder.feed(data)
                decoder.close()
