"""``ninferd generate`` and ``ninferd chat`` on a scripted engine, and once on the real one."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from ninferd.cli import chat_session, main
from ninferd.engine.messages import GenerationRequest, RequestEvent, TokensGenerated
from tests.api.harness import ANSWER, CALL_CLOSE, CALL_OPEN, EOS, THINK_END, TOKENIZER, ids
from tests.support.scripted_engine import Script, ScriptedEngine

MODEL = "embedded:ninfer-tiny"


class EntrableEngine(ScriptedEngine):
    """Stands in for LocalEngine; ``interrupt_after`` tokens it presses Ctrl-C."""

    interrupt_after: int | None = None

    def __call__(self, _build: object, _on_progress: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestEvent, None]:
        async for event in super().generate(request):
            yield event
            generated = event.timings.generated_tokens if isinstance(event, TokensGenerated) else 0
            if self.interrupt_after is not None and generated >= self.interrupt_after:
                self.interrupt_after = None
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()  # until cancelled


Install = Callable[..., EntrableEngine]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    def install(*scripts: Script, interrupt_after: int | None = None) -> EntrableEngine:
        engine = EntrableEngine(list(scripts))
        engine.interrupt_after = interrupt_after
        monkeypatch.setattr(chat_session, "LocalEngine", engine)
        return engine

    empty = tmp_path / "ninferd.toml"
    empty.write_text("")
    monkeypatch.setenv("NINFERD_CONFIG", str(empty))
    return install


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def prompts(engine: ScriptedEngine) -> list[str]:
    return [TOKENIZER.decode(request.prompt.to_list()) for request in engine.requests]


def test_generate_separates_answer_and_reasoning(scripted: Install, capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted(Script(ANSWER))
    assert main(["generate", MODEL, "--prompt", "why?", "--max-tokens", "50", "--stop", "END"]) == 0
    output = capsys.readouterr()
    assert output.out == "Because.\n"
    assert output.err.startswith("why\n\n[stop | prompt ")
    request = engine.requests[0]
    assert (request.max_tokens, request.sampling.seed) == (50, 0)
    assert "<|im_start|>user\nwhy?<|im_end|>" in prompts(engine)[0]


def test_generate_takes_sampling_flags(scripted: Install) -> None:
    engine = scripted(Script(ids("Yes.", EOS)))
    arguments = ["generate", MODEL, "--prompt", "x", "--temperature", "0.25", "--seed", "9", "--no-thinking"]
    assert main(arguments) == 0
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.seed) == (0.25, 9)
    assert prompts(engine)[0].endswith("</think>\n\n")


def test_generate_stops_at_a_stop_string(scripted: Install, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(Script(ids(THINK_END, "one two three", EOS)))
    assert main(["generate", MODEL, "--prompt", "x", "--stop", " two", "--stop", " three"]) == 0
    assert capsys.readouterr().out == "one\n"


def test_generate_prints_calls(scripted: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = (CALL_OPEN, "\n<function=ping>\n</function>\n", CALL_CLOSE)
    scripted(Script(ids(THINK_END, "Look.\n", *call, "\n", *call, EOS)))
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "ping"}}],
    }
    path = tmp_path / "body.json"
    path.write_text(json.dumps(body))
    assert main(["generate", MODEL, "--messages", str(path)]) == 0
    assert capsys.readouterr().out == "Look.\nping {}\nping {}\n"


def test_generate_reads_messages_from_stdin(scripted: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted(Script(ANSWER))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(messages).encode())))
    assert main(["generate", MODEL, "--messages", "-"]) == 0
    assert prompts(engine)[0].startswith("<|im_start|>system\nBe brief.")


@pytest.mark.parametrize(
    "arguments", [[], ["--prompt", "a", "--messages", "b"], ["--prompt", "a", "--max-tokens", "x"]]
)
def test_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", MODEL, *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[]", "messages: "),
        ('{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n: only one choice"),
        ('[{"role": "robot", "content": "x"}]', "role 'robot'"),
        ('[{"role": "assistant", "content": "x"}]', "refused the conversation"),
    ],
)
def test_unusable_messages(
    scripted: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, message: str
) -> None:
    scripted(Script(ANSWER))
    path = tmp_path / "messages.json"
    if content is not None:
        path.write_text(content)
    assert main(["generate", MODEL, "--messages", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_generation_that_fails(scripted: Install, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(Script(failure="engine_error"))
    assert main(["generate", MODEL, "--prompt", "x"]) == 1
    assert "scripted failure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "the answer cannot be written: [Errno 28] No space left"),
        (
            UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)"),
            1,
            "the answer cannot be written: 'ascii'",
        ),
    ],
    ids=["pipe", "disk", "locale"],
)
def test_answer_that_cannot_be_written(
    scripted: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    failure: Exception,
    status: int,
    message: str,
) -> None:
    engine = scripted(Script(ids(THINK_END, "one two", EOS)))
    with (tmp_path / "stdout").open("w") as stdout:

        def write(_text: str) -> int:
            raise failure

        monkeypatch.setattr(stdout, "write", write)
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["generate", MODEL, "--prompt", "x"]) == status
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len(engine.cancelled) == 1


def test_prompt_that_is_not_text_is_refused(scripted: Install, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(Script(ANSWER))
    assert main(["generate", MODEL, "--prompt", "a\udcff"]) == 2
    assert capsys.readouterr().err == "ninferd: the text to answer holds bytes that are not UTF-8\n"


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a\\x1b[2Jb\n"), (False, "a\x1b[2Jb\n")])
def test_model_does_not_drive_the_terminal(
    scripted: Install, monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    class Stdout(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    scripted(Script(ids(THINK_END, "a\x1b[2Jb", EOS)))
    stdout = Stdout()
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(["generate", MODEL, "--prompt", "x"]) == 0
    assert stdout.getvalue() == shown


def test_failure_while_reasoning_leaves_the_terminal_undimmed(
    scripted: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stderr(io.StringIO):
        def isatty(self) -> bool:
            return True

    scripted(Script(ids("a b c"), failure="engine_error", fail_after_tokens=2))
    stderr = Stderr()
    monkeypatch.setattr("sys.stderr", stderr)
    assert main(["generate", MODEL, "--prompt", "x"]) == 1
    dimmed, _, after = stderr.getvalue().partition("\x1b[2m")
    assert dimmed != stderr.getvalue()
    assert "\x1b[0m" in after


def test_generate_can_be_interrupted(scripted: Install) -> None:
    engine = scripted(Script(ids("a b c d e")), interrupt_after=2)
    assert main(["generate", MODEL, "--prompt", "x"]) == 130
    assert len(engine.cancelled) == 1


def test_chat_keeps_the_conversation(
    scripted: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(Script(ANSWER))
    type_lines(monkeypatch, "first", "", "second", "/reset", "third", "/exit", "never")
    assert main(["chat", MODEL]) == 0
    assert capsys.readouterr().out == "Because.\n" * 3
    first, second, third = prompts(engine)
    assert "first" in second
    assert "Because." in second
    assert "first" not in third
    assert first.count("<|im_start|>user") == third.count("<|im_start|>user") == 1


def test_chat_switches_thinking(scripted: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted(Script(ANSWER))
    type_lines(monkeypatch, "/think off", "a", "/think on", "b", "/unknown")
    assert main(["chat", MODEL]) == 0
    assert [prompt.endswith("<think>\n") for prompt in prompts(engine)] == [False, True]


def test_interrupt_ends_the_turn_only(
    scripted: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(Script(ids(THINK_END, "one two three four")), Script(ANSWER), interrupt_after=3)
    type_lines(monkeypatch, "first", "second")
    assert main(["chat", MODEL]) == 0
    output = capsys.readouterr()
    assert "[stopped]" in output.err
    assert output.out.endswith("Because.\n")
    assert len(engine.cancelled) == 1
    assert "<|im_start|>assistant\none" in prompts(engine)[1], "the stopped answer stays in the history"


def test_refused_turn_is_taken_back(
    scripted: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(Script(ANSWER))
    type_lines(monkeypatch, "word " * 5000, "short")
    assert main(["chat", MODEL]) == 0
    assert "the context holds 2048" in capsys.readouterr().err
    assert "word" not in prompts(engine)[0]


def test_generate_on_the_real_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "ninferd.toml"
    empty.write_text("")
    monkeypatch.setenv("NINFERD_CONFIG", str(empty))
    options: list[Any] = ["--set", "engine.device='cpu'", "--max-context", "512", "--max-tokens", "12"]
    outputs = []
    for _ in range(2):
        assert main(["generate", MODEL, "--prompt", "Hello", "--temperature", "1", *options]) == 0
        outputs.append(capsys.readouterr())
    assert "output 12 tokens" in outputs[0].err or "[stop" in outputs[0].err
    assert outputs[0].out == outputs[1].out, "the default seed repeats the answer"
