"""Generated tokens to the visible parts of an answer: reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninferd.chat.detokenizer import Detokenizer
from ninferd.chat.frontend import ChatFrontend, PreparedPrompt
from ninferd.chat.reasoning import Channel, ReasoningSplitter
from ninferd.chat.stop import LeadingTrim, StopMatcher, TrailingTrim
from ninferd.chat.tool_calls import FallbackReason, ParsedCalls, ToolCall, ToolCallHold
from ninferd.engine.messages import TokenLogprobs


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class ContentDelta:
    """``logprobs``: of the answer tokens since the last content delta, if asked for; ``text`` may then be empty."""

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class ToolCallsDelta:
    calls: tuple[ToolCall, ...]


AnswerDelta = ReasoningDelta | ContentDelta | ToolCallsDelta


def merged(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """The same answer in as few pieces as possible: neighbours of one channel are joined."""
    joined: list[AnswerDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text, last.logprobs + delta.logprobs)
        else:
            joined.append(delta)
    return joined


@dataclass(frozen=True)
class Ending:
    """What is still to be shown when generation ends."""

    deltas: tuple[AnswerDelta, ...]
    has_calls: bool
    fallback: FallbackReason | None


class OutputReader:
    """Reads one answer token by token.

    reasoning: detokenise → drop leading whitespace → stop strings → drop trailing whitespace
    content:   detokenise → drop leading newlines after reasoning → stop strings → tool-call hold
    """

    def __init__(
        self, frontend: ChatFrontend, prompt: PreparedPrompt, *, stop: Sequence[str], first_call_only: bool
    ) -> None:
        self._stop_ids = frozenset(frontend.stop_token_ids)
        self._detokenizer = Detokenizer(frontend.tokenizer, show_special=prompt.shows_special_tokens)
        self._splitter = ReasoningSplitter(frontend.think_tokens, starts_open=prompt.starts_in_reasoning)
        self._reasoning_lead = LeadingTrim(None)
        self._reasoning_tail = TrailingTrim()
        self._content_lead = LeadingTrim("")
        self._stop = StopMatcher(stop)
        self._hold = ToolCallHold(prompt.tools, seed=prompt.seed_text)
        self._first_call_only = first_call_only
        self._logprobs: list[TokenLogprobs] = []
        self.tokens = 0
        self.reasoning_tokens = 0
        self.complete = False  # a stop string or the only wanted call ended the answer

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> list[AnswerDelta]:
        """Account for one token and return what became visible."""
        self.tokens += 1
        channel = self._splitter.channel
        if channel == "reasoning":
            self.reasoning_tokens += 1
        if token_id in self._stop_ids:
            return []
        if not self._splitter.push(token_id):
            return self._change_channel(channel)
        if channel == "content" and logprobs is not None:
            self._logprobs.append(logprobs)
        return self._show(channel, self._detokenizer.push(token_id))

    def finish(self) -> Ending:
        """End of output: release what was held, in order, and parse the tool region."""
        channel = self._splitter.channel
        deltas = self._close(channel)
        text, parsed = self._hold.finish()
        calls: tuple[ToolCall, ...] = ()
        if isinstance(parsed, ParsedCalls):
            calls = parsed.calls[:1] if self._first_call_only else parsed.calls
        if text or self._logprobs:
            deltas.append(self._content_delta(text))
        if calls:
            deltas.append(ToolCallsDelta(calls))
        fallback = parsed if isinstance(parsed, str) else None
        return Ending(tuple(deltas), bool(calls), fallback)

    def _change_channel(self, left: Channel) -> list[AnswerDelta]:
        deltas = self._close(left)
        if left == "reasoning":
            self._content_lead = LeadingTrim("\r\n")
        return deltas

    def _close(self, channel: Channel) -> list[AnswerDelta]:
        """Flush what the channel's own stages hold; a cut character becomes U+FFFD."""
        if self.complete:
            return []
        deltas = self._show(channel, self._detokenizer.flush())
        return deltas + self._after_stop(channel, self._stop.flush())

    def _show(self, channel: Channel, text: str) -> list[AnswerDelta]:
        lead = self._reasoning_lead if channel == "reasoning" else self._content_lead
        text = self._stop.push(lead.push(text))
        self.complete = self._stop.matched
        return self._after_stop(channel, text)

    def _after_stop(self, channel: Channel, text: str) -> list[AnswerDelta]:
        if channel == "reasoning":
            text = self._reasoning_tail.push(text)
            return [ReasoningDelta(text)] if text else []
        text = self._hold.push(text)
        if self._first_call_only and self._hold.first_call_is_complete():
            self.complete = True
        return [self._content_delta(text)] if text else []

    def _content_delta(self, text: str) -> ContentDelta:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return ContentDelta(text, logprobs)
