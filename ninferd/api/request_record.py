"""One generation request as the operator sees it: log lines and counters, never prompts, answers or keys."""

from __future__ import annotations

import itertools
import logging
import time

from ninferd.api.chat_request import ChatRequest
from ninferd.api.errors import ApiError
from ninferd.api.stats import ApiCounters
from ninferd.chat.generation import Finish
from ninferd.engine.messages import RequestTimings

logger = logging.getLogger("ninferd.requests")

_numbers = itertools.count(1)
_WORTH_LOGGING_QUEUE_MS = 10


class RequestRecord:
    """Follows a request through its stages; exactly one of done, failed and cancelled ends it."""

    def __init__(self, counters: ApiCounters, protocol: str, key_label: str | None) -> None:
        self._counters = counters
        self._protocol = protocol
        self._name = f"req#{next(_numbers)}"
        self._label = protocol.removesuffix("_completions").replace("_", "-")
        self._key_label = key_label
        self._arrived_s = time.monotonic()
        self._admitted_s = self._arrived_s
        self.stage = "prepare"
        counters.by_protocol[protocol] += 1

    def started(self, request: ChatRequest, *, thinking: bool) -> None:
        """Prepared and about to be queued."""
        self.stage = "queue"
        self._counters.outcomes["started"] += 1
        self._counters.ignored += len(request.ignored)
        conversation = request.conversation
        parts = [
            f"{self._label}{' stream' if request.form.stream else ''}",
            f"{len(conversation.messages)} messages",
            f"max output {request.max_tokens:,}",
            f"thinking {'on' if thinking else 'off'}",
        ]
        if conversation.tools:
            parts.append(f"tools {len(conversation.tools)}")
        if self._key_label is not None:
            parts.append(f"key {self._key_label}")
        if request.ignored:
            parts.append(f"ignored {', '.join(request.ignored)}")
        self._log(logging.INFO, "started", *parts)

    def admitted(self) -> None:
        self.stage = "generation"
        self._admitted_s = time.monotonic()

    def done(self, finish: Finish, calls: int) -> None:
        usage, timings = finish.usage, finish.timings
        wait_s = self._admitted_s - self._arrived_s
        ttft_s = wait_s + timings.prefill_ms / 1e3
        self._counters.outcomes["done"] += 1
        self._counters.queue_wait_s += timings.queue_ms / 1e3
        self._counters.ttft_s += ttft_s
        self._counters.structured_tool_calls += calls
        parts = [self._label]
        if calls:
            parts.append(f"tool calls {calls}")
        parts += [f"prompt {usage.prompt_tokens:,}", f"output {usage.completion_tokens:,}"]
        if usage.cached_tokens:
            parts.append(f"cache {usage.cached_tokens:,} ({usage.cached_tokens / usage.prompt_tokens:.1%})")
        parts += [f"TTFT {ttft_s * 1e3:.0f} ms", f"total {time.monotonic() - self._arrived_s:.1f} s"]
        if timings.queue_ms >= _WORTH_LOGGING_QUEUE_MS:
            parts.append(f"queue {timings.queue_ms:.0f} ms")
        self._log(logging.INFO, "done", *parts, *_rates(timings, usage.prompt_tokens - usage.cached_tokens))
        if finish.fallback is not None:
            self._counters.tool_fallbacks[finish.fallback] += 1
            self._log(logging.WARNING, "tool markup returned as text", finish.fallback.replace("_", " "))

    def failed(self, error: ApiError) -> None:
        """Refused or failed with an error that the client was told."""
        outcome = "rejected" if self.stage == "prepare" else "failed"
        self._counters.outcomes["rejected" if outcome == "rejected" else "errors"] += 1
        level = logging.INFO if error.status < 429 else logging.WARNING
        parts = [f"HTTP {error.status}", (error.code or error.type).replace("_", " ")]
        if error.param is not None:
            parts.append(error.param)
        self._log(level, f"{outcome} during {self.stage}", self._label, *parts)

    def crashed(self) -> None:
        """An unexpected exception is being handled: its traceback goes to the log."""
        logger.exception("%s internal error during %s", self._name, self.stage)

    def cancelled(self) -> None:
        """The client went away."""
        self._counters.outcomes["cancelled"] += 1
        self._log(logging.INFO, f"cancelled during {self.stage}", self._label, "client disconnected")

    def _log(self, level: int, what: str, *parts: str) -> None:
        logger.log(level, "%s", " | ".join((f"{self._name} {what}", *parts)))


def _rates(timings: RequestTimings, prefilled_tokens: int) -> list[str]:
    parts: list[str] = []
    if timings.prefill_ms > 0:
        parts.append(f"prefill {1e3 * prefilled_tokens / timings.prefill_ms:,.0f} tok/s")
    if timings.decode_ms > 0:
        parts.append(f"decode {1e3 * (timings.generated_tokens - 1) / timings.decode_ms:,.1f} tok/s")
    return parts
