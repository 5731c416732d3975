"""A loaded model answering in this process: the daemon's own request path with a terminal at its end."""

from __future__ import annotations

import asyncio
import functools
import sys
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TextIO

import msgspec

from ninferd.api.chat_payloads import message_of, timings_of
from ninferd.api.chat_request import plan_generation, read_chat_request
from ninferd.api.errors import ApiError, from_exception
from ninferd.api.models import public_model_name
from ninferd.chat.generation import Finish, Generation, GenerationPlan
from ninferd.chat.output import ContentDelta, ReasoningDelta, ToolCallsDelta
from ninferd.chat.tool_calls import ToolCall
from ninferd.config.schema import Settings
from ninferd.daemon.console import printable
from ninferd.daemon.serving import load_frontend
from ninferd.engine.build import build_engine
from ninferd.engine.local import LocalEngine
from ninferd.engine.messages import EngineInfo, LoadProgress
from ninferd.errors import InputError, NinferError

DEFAULT_SEED = 0  # a one-shot answer can be repeated unless sampling.seed says otherwise

_DIM, _PLAIN, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


class Session:
    """Loads on entry; used from ordinary synchronous code."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._frontend = load_frontend(settings)
        self._engine = LocalEngine(functools.partial(build_engine, settings), _show_loading)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        try:
            self._runner.run(self._engine.__aenter__())
        except BaseException:
            self._runner.__exit__(*sys.exc_info())
            raise
        finally:
            if sys.stderr.isatty():
                _write(sys.stderr, _CLEAR_LINE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._engine.__aexit__(kind, error, trace))
        finally:
            self._runner.__exit__(kind, error, trace)

    def answer(self, body: dict[str, Any], *, interruptible: bool = False) -> dict[str, Any]:
        """Answer a chat request body on the terminal and return the assistant message.

        ``interruptible``: Ctrl-C ends the answer where it is instead of the program. Raises InputError for a request
        that cannot be, NinferError when generation or writing fails, BrokenPipeError when the reader has left.
        """
        encoded = self._encode(body)
        printer = _Printer()
        try:
            self._runner.run(self._generate(encoded, printer))
        except KeyboardInterrupt:
            printer.end("stopped")
            if not interruptible:
                raise
        except ApiError as error:
            printer.leave_reasoning()
            raise (InputError(str(error)) if error.status < 500 else NinferError(str(error))) from error
        except BrokenPipeError:
            raise
        except (OSError, UnicodeEncodeError) as error:
            raise NinferError(f"the answer cannot be written: {error}") from error
        return printer.message()

    @property
    def _info(self) -> EngineInfo:
        info = self._engine.info
        assert info is not None, "the engine is loaded on entry"
        return info

    def _encode(self, body: dict[str, Any]) -> bytes:
        model = public_model_name(self._settings, self._info)
        try:
            return msgspec.json.encode({"model": model, **body})
        except UnicodeEncodeError as error:
            raise InputError("the text to answer holds bytes that are not UTF-8") from error

    async def _generate(self, body: bytes, printer: _Printer) -> None:
        try:
            generation = Generation(self._engine, self._frontend, self._plan(body))
            async with aclosing(generation.events()) as events:
                async for event in events:
                    if isinstance(event, (ReasoningDelta, ContentDelta, ToolCallsDelta)):
                        printer.show(event)
                    elif isinstance(event, Finish):
                        printer.end(_statistics(event))
        except NinferError as error:
            raise from_exception(error) from error

    def _plan(self, body: bytes) -> GenerationPlan:
        info = self._info
        model = public_model_name(self._settings, info)
        request = read_chat_request(body, self._settings, model=model, max_context=info.max_context)
        if request.seed is None and self._settings.sampling.seed is None:
            request = replace(request, seed=DEFAULT_SEED)
        return plan_generation(request, self._frontend, self._settings, max_context=info.max_context)


class _Printer:
    """Answer text and calls to stdout; reasoning, dimmed on a terminal, and statistics to stderr."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._reasons = False  # the reasoning is what is being written
        self._dims = sys.stderr.isatty()

    def show(self, delta: ReasoningDelta | ContentDelta | ToolCallsDelta) -> None:
        if isinstance(delta, ReasoningDelta):
            if not self._reasons and self._dims:
                _write(sys.stderr, _DIM)
            self._reasons = True
            self._reasoning.append(delta.text)
            _show(sys.stderr, delta.text)
            return
        self.leave_reasoning()
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
            _show(sys.stdout, delta.text)
        else:
            separator = "\n" if self._content or self._calls else ""
            self._calls.extend(delta.calls)
            for call in delta.calls:
                _show(sys.stdout, f"{separator}{call.name} {call.arguments}")
                separator = "\n"

    def end(self, statistics: str) -> None:
        self.leave_reasoning()
        if self._content or self._calls:
            _write(sys.stdout, "\n")
        _write(sys.stderr, f"[{statistics}]\n")

    def message(self) -> dict[str, Any]:
        return message_of("".join(self._reasoning), "".join(self._content), self._calls)

    def leave_reasoning(self) -> None:
        """End the reasoning that is being written, if any."""
        if self._reasons:
            self._reasons = False
            _write(sys.stderr, f"{_PLAIN if self._dims else ''}\n\n")


def _show(stream: TextIO, text: str) -> None:
    """Text of the model: exactly as it is, but for what would drive a terminal."""
    _write(stream, printable(text) if stream.isatty() else text)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _statistics(finish: Finish) -> str:
    usage, rates = finish.usage, timings_of(finish.usage, finish.timings)
    return (
        f"{finish.reason} | prompt {usage.prompt_tokens}, output {usage.completion_tokens} tokens | "
        f"prefill {rates['prompt_per_second']:.0f} tok/s | decode {rates['predicted_per_second']:.1f} tok/s"
    )


def _show_loading(progress: LoadProgress) -> None:
    if sys.stderr.isatty():
        done = f" {progress.done_bytes / progress.total_bytes:.0%}" if progress.total_bytes else ""
        _write(sys.stderr, f"{_CLEAR_LINE}loading {progress.stage}{done}")
