"""Text to token ids and back for byte-level BPE tokenizers (``tokenizer.json``)."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from ninferd.chat.control_tokens import ControlTokenMarks
from ninferd.chat.errors import FrontendError
from ninferd.weights.resources import TOKENIZER, FrontendFiles, place
from ninferd.weights.token_domain import TokenDomain, read_token_domain


class ChatTokenizer:
    """A tokenizer that never turns ordinary text into control tokens.

    The library's tokenizer is built without the added tokens, so nothing it sees can become one; they are inserted by
    id where the template wrote them.
    """

    def __init__(self, domain: TokenDomain) -> None:
        """Raises FrontendError if the library refuses the definition or plain text could become a control token."""
        plain = {**domain.definition, "added_tokens": [], "post_processor": None}
        try:
            self._plain = Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception
            raise FrontendError(f"cannot be used: {error}") from error
        self.token_count = domain.count
        self.added = {token.id: token for token in domain.added}
        self._id_of_control = {token.text: token.id for token in domain.added}
        self.token_bytes = _token_bytes(domain)
        self.longest_token_bytes = max(len(value) for value in self.token_bytes.values())
        self._check_plain_text_is_plain()

    @classmethod
    def load(cls, files: FrontendFiles) -> ChatTokenizer:
        """Read ``tokenizer.json`` and the ``added_tokens_decoder`` of ``tokenizer_config.json``.

        Raises InputError naming the file and what is wrong with it.
        """
        domain = read_token_domain(files)
        try:
            return cls(domain)
        except FrontendError as error:
            raise FrontendError(f"{place(files, TOKENIZER)}: {error}") from error

    @property
    def control_spellings(self) -> frozenset[str]:
        return frozenset(self._id_of_control)

    def id_of(self, spelling: str) -> int | None:
        """The id of a control token, or None when this tokenizer has no such token."""
        return self._id_of_control.get(spelling)

    def encode_text(self, text: str) -> list[int]:
        """Ordinary text; spellings of control tokens in it are encoded as text."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_rendered(self, rendered: str, marks: ControlTokenMarks) -> list[int]:
        """A rendered template: marked spellings become control tokens, everything between them is ordinary text.

        Equal to encoding the visible text whole when no caller wrote a control-token spelling, because the library
        also cuts at added tokens before it applies anything else.
        """
        ids: list[int] = []
        for text, is_control in marks.split(rendered):
            if is_control:
                ids.append(self._id_of_control[text])
            else:
                ids.extend(self.encode_text(text))
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """The whole text of ids, special tokens included; incomplete UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes.get(token_id, b"") for token_id in token_ids).decode("utf-8", "replace")

    def _check_plain_text_is_plain(self) -> None:
        for spelling, token_id in self._id_of_control.items():
            if token_id in self.encode_text(spelling):
                raise FrontendError(f"plain text can produce the control token {spelling!r}")


def _byte_of_char() -> dict[str, int]:
    """The inverse of the byte-level alphabet: printable Latin-1 stands for itself, the rest starts at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    others = (value for value in range(0x100) if chr(value) not in table)
    table.update({chr(0x100 + index): value for index, value in enumerate(others)})
    return table


def _token_bytes(domain: TokenDomain) -> dict[int, bytes]:
    byte_of = _byte_of_char()
    table: dict[int, bytes] = {}
    for text, token_id in domain.vocabulary.items():
        try:
            table[token_id] = bytes(byte_of[char] for char in text)
        except KeyError:  # not written in the byte-level alphabet: the library shows it as it is
            table[token_id] = text.encode()
    for token in domain.added:
        table[token.id] = token.text.encode()
    return table
