"""The engine child as a real process over a socket pair."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from ninferd.config.schema import Settings
from ninferd.engine import frames, process
from ninferd.engine.messages import (
    CancelRequest,
    Command,
    Configure,
    EngineEvent,
    EngineFailed,
    EngineReady,
    GenerationRequest,
    Heartbeat,
    LoadProgress,
    LogLine,
    PromptIdentity,
    RequestFinished,
    SamplingParams,
    Shutdown,
    TokensGenerated,
)
from ninferd.errors import InputError

GIVE_UP_S = 60.0  # a hung child fails the test instead of blocking the suite
EventT = TypeVar("EventT", bound=EngineEvent)


class Child:
    """A started engine child and our end of its socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(GIVE_UP_S)
        with theirs:
            command = [sys.executable, "-m", "ninferd.engine.process", "--fd", str(theirs.fileno())]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        self._decoder = frames.decode_events()
        self._events: list[EngineEvent] = []

    def send(self, *commands: Command) -> None:
        """At once: the child must not be done with one before it sees the next."""
        self.socket.sendall(b"".join(map(frames.encode, commands)))

    def events(self) -> Iterator[EngineEvent]:
        """Until the child closes its end."""
        while True:
            while self._events:
                yield self._events.pop(0)
            data = self.socket.recv(1 << 16)
            if not data:
                self._decoder.close()
                return
            self._events += self._decoder.feed(data)

    def until(self, kind: type[EventT]) -> EventT:
        """The next event of a kind; earlier ones of other kinds are dropped."""
        for event in self.events():
            if isinstance(event, kind):
                return event
            assert not isinstance(event, EngineFailed), event.message
        raise AssertionError(f"the child ended without {kind.__name__}")

    def exit_status(self) -> int:
        return self.process.wait(GIVE_UP_S)


@pytest.fixture
def child() -> Iterator[Child]:
    started = Child()
    yield started
    started.socket.close()
    started.process.kill()
    started.process.wait()


def _configure(settings: Settings) -> Configure:
    return Configure(settings.model_dump_json().encode())


def _request(name: str, max_tokens: int) -> GenerationRequest:
    prompt = PromptIdentity.from_token_ids(list(range(20)))
    return GenerationRequest(name, prompt, SamplingParams(seed=0, temperature=0.0), max_tokens, ())


def test_a_session_from_load_to_shutdown(child: Child, settings: Settings) -> None:
    child.send(_configure(settings))
    first = child.until(LoadProgress)
    assert (first.stage, first.done_bytes <= first.total_bytes) == ("weights", True)
    assert child.until(EngineReady).info.model_name == "tiny"
    child.until(Heartbeat)

    child.send(_request("a", 4), _request("a", 4))
    assert "'a' is in use" in child.until(LogLine).message
    finished = child.until(RequestFinished)
    assert (finished.reason, finished.timings.generated_tokens) == ("length", 4)

    child.process.send_signal(signal.SIGTERM)  # reaches the whole control group at stop; the parent decides
    child.process.send_signal(signal.SIGINT)
    child.send(_request("b", 400))
    child.until(TokensGenerated)
    child.send(CancelRequest("b"))
    assert child.until(RequestFinished).reason == "cancelled"

    child.send(_request("c", 400))
    child.until(TokensGenerated)
    child.send(Shutdown())
    last = [event for event in child.events() if isinstance(event, RequestFinished)]
    assert [(event.request_id, event.reason) for event in last] == [("c", "cancelled")]
    assert child.exit_status() == 0


def test_end_of_file_ends_the_child(child: Child, settings: Settings) -> None:
    child.send(_configure(settings))
    child.until(EngineReady)
    child.send(_request("a", 400))
    child.until(TokensGenerated)
    child.socket.close()
    assert child.exit_status() == 0


def test_a_bad_checkpoint_is_reported_with_its_reason(child: Child, settings: Settings, checkpoint: Path) -> None:
    broken = checkpoint.parent / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "config.json").write_text((checkpoint / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    tables = settings.model_dump(include={"model", "engine"})
    tables["model"]["artifact"] = str(broken)
    child.send(_configure(Settings.model_validate(tables)))
    failed = next(event for event in child.events() if isinstance(event, EngineFailed))
    assert "model.safetensors" in failed.message
    assert child.exit_status() == InputError.exit_status


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (CancelRequest("x"), "first frame must be configure"),
        (Configure(b"{"), "settings"),
        (Configure(b'{"engine": {"max_context": -1}}'), "max_context"),
    ],
    ids=["other", "no-json", "invalid"],
)
def test_a_bad_first_frame_is_reported(child: Child, first: Command, reason: str) -> None:
    child.send(first)
    failed = next(event for event in child.events() if isinstance(event, EngineFailed))
    assert reason in failed.message
    assert child.exit_status() == process.EXIT_FAILED


def test_garbage_ends_the_child(child: Child) -> None:
    child.socket.sendall(b"\x05\x00\x00\x00hello")
    lines = [event for event in child.events() if isinstance(event, LogLine)]
    assert lines[0].message.startswith("connection to the main process: undecodable frame"), (
        "no level or name before it"
    )
    assert child.exit_status() == 0


MIDDLEMAN = """
import socket, subprocess, sys
descriptor = sys.argv[1]
child = subprocess.Popen(
    [sys.executable, "-m", "ninferd.engine.process", "--fd", descriptor], pass_fds=[int(descriptor)]
)
print(child.pid, flush=True)
child.wait()
"""


def test_the_child_dies_with_a_killed_parent(settings: Settings) -> None:
    """The test holds both ends of the socket open, so it is the kernel's signal that ends the child."""
    ours, theirs = socket.socketpair()
    ours.settimeout(GIVE_UP_S)
    with ours, theirs:
        command = [sys.executable, "-c", MIDDLEMAN, str(theirs.fileno())]
        parent = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        with parent.stdout:
            watched = os.pidfd_open(int(parent.stdout.readline()))
        ours.sendall(frames.encode(_configure(settings)))
        assert ours.recv(1), "the first progress frame shows that the child runs"
        parent.kill()
        parent.wait()
        readable, _, _ = select.select([watched], [], [], GIVE_UP_S)
        os.close(watched)
    assert readable, "the child outlived its parent"


def test_a_loop_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ORPHAN_GRACE_S", 0.0)
    ours, theirs = socket.socketpair()
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    given_up = threading.Event()
    with theirs:
        ours.sendall(frames.encode(CancelRequest("a")))
        ours.close()
        process.read_commands(theirs, commands, given_up.set)
    assert commands.get_nowait() == CancelRequest("a")
    assert commands.get_nowait() == Shutdown()
    assert given_up.wait(GIVE_UP_S)
