"""JSON objects of chat answers (serving §3.1, §3.2, §4)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninferd.chat.generation import Usage
from ninferd.chat.tokenizer import ChatTokenizer
from ninferd.chat.tool_calls import ToolCall
from ninferd.engine.messages import RequestTimings, TokenLogprob, TokenLogprobs

Payload = dict[str, Any]


@dataclass(frozen=True)
class ChatPayloads:
    """Objects of one answer; they share id, creation time and model name."""

    model: str
    tokenizer: ChatTokenizer
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(8)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, message: Payload, logprobs: Payload | None, finish_reason: str) -> Payload:
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._object("chat.completion", [choice])

    def chunk(self, delta: Payload, *, logprobs: Payload | None = None, finish_reason: str | None = None) -> Payload:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def usage_chunk(self) -> Payload:
        return self._object("chat.completion.chunk", [])

    def logprobs(self, positions: Sequence[TokenLogprobs]) -> Payload:
        """OpenAI's ``logprobs`` object for the answer tokens at ``positions``."""
        content = [
            {**self._logprob(position.chosen), "top_logprobs": [self._logprob(entry) for entry in position.top]}
            for position in positions
        ]
        return {"content": content, "refusal": None}

    def _logprob(self, entry: TokenLogprob) -> Payload:
        raw = self.tokenizer.token_bytes.get(entry.token_id, b"")
        return {"token": raw.decode("utf-8", "replace"), "logprob": entry.logprob, "bytes": list(raw)}

    def _object(self, kind: str, choices: list[Payload]) -> Payload:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def message_of(reasoning: str, content: str, calls: Sequence[ToolCall]) -> Payload:
    """The assistant message of an aggregate answer; with calls and no text ``content`` is null."""
    message: Payload = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def tool_call(call: ToolCall) -> Payload:
    return {
        "id": f"call_{secrets.token_hex(8)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def usage_of(usage: Usage) -> Payload:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens": usage.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def timings_of(usage: Usage, timings: RequestTimings) -> Mapping[str, float]:
    """llama.cpp's timings: prompt from admission to the first token, prediction from the first to the last."""
    prompt_tokens = usage.prompt_tokens - usage.cached_tokens
    intervals = max(usage.completion_tokens - 1, 0)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_tokens,
        "prompt_ms": timings.prefill_ms,
        "prompt_per_token_ms": _ratio(timings.prefill_ms, prompt_tokens),
        "prompt_per_second": 1e3 * _ratio(prompt_tokens, timings.prefill_ms),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": timings.decode_ms,
        "predicted_per_token_ms": _ratio(timings.decode_ms, intervals),
        "predicted_per_second": 1e3 * _ratio(intervals, timings.decode_ms),
    }


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
