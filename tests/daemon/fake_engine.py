"""A scripted engine child: speaks the real frames, loads nothing.

    python -m tests.daemon.fake_engine DIRECTORY --fd N

How it loads is chosen by ``model.artifact`` of the configuration (see ``LOADING``), what it does with a request by the
first token of the prompt (see ``Act``). ``DIRECTORY/launches`` gets one line per start: the pid and the artifact.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import sys
from pathlib import Path

import msgspec

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
    RequestAdmitted,
    RequestFinished,
    RequestTimings,
    Shutdown,
    TokensGenerated,
)

INFO = EngineInfo(
    model_name="fake",
    architecture="Fake",
    device="cpu",
    weights_dtype="float32",
    kv_dtype="fp32",
    vocab_size=16,
    max_context=128,
    max_concurrency=1,
    kv_capacity_tokens=128,
    page_tokens=64,
    state_slots=1,
    weights_bytes=1,
    kv_bytes=2,
    state_bytes=3,
    load_seconds=0.5,
)
STATS = EngineStats(7, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0)


class Act(enum.IntEnum):
    """First prompt token: what to do with the request."""

    ANSWER = 1  # max_tokens tokens, then finished
    HOLD = 2  # one token, then nothing until cancelled
    WAIT = 3  # no token until cancelled
    CRASH_STREAMING = 4  # one token, then exit 7
    CRASH_ONCE = 5  # exit 7 in the first launch, answer in later ones
    CRASH_ALWAYS = 6


class FakeEngine:
    def __init__(self, directory: Path, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = frames.decode_commands()
        self._launches = directory / "launches"

    def serve(self) -> None:
        while data := self._connection.recv(1 << 16):
            for command in self._decoder.feed(data):
                self._handle(command)

    def _send(self, event: EngineEvent) -> None:
        self._connection.sendall(frames.encode(event))

    def _handle(self, command: Command) -> None:
        match command:
            case Configure(settings_json=text):
                self._load(json.loads(text)["model"]["artifact"])
            case GenerationRequest():
                self._generate(command)
            case CancelRequest(request_id=request_id):
                self._send(RequestFinished(request_id, "cancelled", RequestTimings()))
            case Shutdown():
                sys.exit(0)

    def _load(self, artifact: str) -> None:
        with self._launches.open("a") as file:
            file.write(f"{os.getpid()} {artifact}\n")
        self._send(LogLine(20, "ninferd.engine.fake", f"loading {artifact}"))
        self._send(LoadProgress("weights", 50, 100))
        match artifact:
            case "fails":
                self._send(EngineFailed("the artifact is broken"))
                sys.exit(1)
            case "dies":
                os.abort()
            case "never-ready":
                return
            case "talks-rubbish":
                self._connection.sendall(b"\xff" * 64)
                return
            case "loads-once" if len(self._launches.read_text().splitlines()) > 1:
                self._send(EngineFailed("the disk is gone"))
                sys.exit(1)
        identity = "another" if artifact == "loads-another" else ""
        self._send(EngineReady(msgspec.structs.replace(INFO, model_identity=identity)))
        self._send(Heartbeat(STATS))

    def _generate(self, request: GenerationRequest) -> None:
        act = Act(request.prompt.to_list()[0])
        first_launch = len(self._launches.read_text().splitlines()) == 1
        if act is Act.CRASH_ALWAYS or (act is Act.CRASH_ONCE and first_launch):
            os._exit(7)
        self._send(RequestAdmitted(request.request_id, 0, 0.0))
        if act is Act.WAIT:
            return
        count = request.max_tokens if act in (Act.ANSWER, Act.CRASH_ONCE) else 1
        for token in range(count):
            self._send(TokensGenerated(request.request_id, (token,), None, RequestTimings(generated_tokens=token + 1)))
        if act is Act.CRASH_STREAMING:
            os._exit(7)
        if act is not Act.HOLD:
            self._send(RequestFinished(request.request_id, "length", RequestTimings(generated_tokens=count)))


def main() -> None:
    directory, flag, descriptor = sys.argv[1:]
    assert flag == "--fd"
    FakeEngine(Path(directory), socket.socket(fileno=int(descriptor))).serve()


if __name__ == "__main__":
    main()
