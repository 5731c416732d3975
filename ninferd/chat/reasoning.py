"""Which generated tokens are reasoning and which are the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ninferd.chat.tokenizer import ChatTokenizer

Channel = Literal["reasoning", "content"]


@dataclass(frozen=True)
class ThinkTokens:
    """Ids of ``<think>``, ``</think>`` and ``<|im_start|>``; None when the tokenizer lacks one."""

    open: int | None
    close: int | None
    turn_start: int | None

    @classmethod
    def of(cls, tokenizer: ChatTokenizer) -> ThinkTokens:
        return cls(tokenizer.id_of("<think>"), tokenizer.id_of("</think>"), tokenizer.id_of("<|im_start|>"))

    def is_open_after(self, prompt: Sequence[int]) -> bool:
        """Whether generation after ``prompt`` starts inside a think block that its last turn opened."""
        if self.open is None or self.close is None:
            return False
        for token_id in reversed(prompt):
            if token_id == self.open:
                return True
            if token_id in (self.close, self.turn_start):
                return False
        return False


class ReasoningSplitter:
    """Follows the channel by token id.

    Reasoning ends at the first ``</think>``; the answer never turns back into reasoning, a later ``<think>`` is text.
    A model that opens the block itself does so with its very first token.
    """

    def __init__(self, tokens: ThinkTokens, *, starts_open: bool) -> None:
        self._tokens = tokens
        self._first = True
        self.channel: Channel = "reasoning" if starts_open else "content"

    def push(self, token_id: int) -> bool:
        """Account for one token; True when it is text of ``channel``, False when it is a marker that moves it."""
        first, self._first = self._first, False
        if self.channel == "reasoning" and token_id == self._tokens.close:
            self.channel = "content"
            return False
        if first and self.channel == "content" and token_id == self._tokens.open and self._tokens.close is not None:
            self.channel = "reasoning"
            return False
        return True
