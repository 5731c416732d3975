"""Token ids to text, one token at a time, never showing half a character."""

from __future__ import annotations

import codecs

from ninferd.chat.tokenizer import ChatTokenizer


class Detokenizer:
    """Any split of a token sequence gives, joined, the text of decoding it whole."""

    def __init__(self, tokenizer: ChatTokenizer, *, show_special: bool) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._hidden = frozenset(token.id for token in tokenizer.added.values() if token.special and not show_special)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; ids outside the vocabulary (padding rows) have none."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._bytes_of.get(token_id, b""))

    def flush(self) -> str:
        """End of a channel: what is still incomplete becomes U+FFFD, and the next token starts afresh."""
        return self._decoder.decode(b"", final=True)
