"""Text to token ids and back for byte-level BPE tokenizers (``tokenizer.json``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from tokenizers import Tokenizer

from ninferd.chat.control_tokens import ControlTokenMarks
from ninferd.chat.errors import FrontendError
from ninferd.weights.identity import MAX_TOKENIZER_BYTES
from ninferd.weights.json_file import read_json_object

T = TypeVar("T")


class _NamedToken(msgspec.Struct, frozen=True):
    content: str
    special: bool = False


class _DeclaredToken(_NamedToken, frozen=True, kw_only=True):
    id: int


class _Model(msgspec.Struct, frozen=True):
    vocab: Annotated[dict[str, int], msgspec.Meta(min_length=1)]
    type: str = "BPE"


class _Decoder(msgspec.Struct, frozen=True):
    type: str
    decoders: list[_Decoder] = []


class _Definition(msgspec.Struct, frozen=True):
    """What is read here of ``tokenizer.json``; the library reads the rest."""

    model: _Model
    decoder: _Decoder | None = None
    added_tokens: list[_DeclaredToken] | None = None


class _Config(msgspec.Struct, frozen=True):
    """The same of ``tokenizer_config.json``."""

    added_tokens_decoder: dict[int, _NamedToken] | None = None


@dataclass(frozen=True)
class AddedToken:
    id: int
    text: str
    special: bool  # hidden from the output unless tools are active


class ChatTokenizer:
    """A tokenizer that never turns ordinary text into control tokens.

    The library's tokenizer is built without the added tokens, so nothing it sees can become one; they are inserted by
    id where the template wrote them.
    """

    def __init__(self, definition: dict[str, Any], added: tuple[AddedToken, ...]) -> None:
        """``definition``: the content of ``tokenizer.json``; ``added``: every added token of the model."""
        plain = {**definition, "added_tokens": [], "post_processor": None}
        try:
            self._plain = Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception
            raise FrontendError(f"tokenizer.json cannot be used: {error}") from error
        self.added = {token.id: token for token in added}
        self._id_of_control = {token.text: token.id for token in added}
        self.token_bytes = _token_bytes(definition, self.added)
        self.longest_token_bytes = max(len(value) for value in self.token_bytes.values())
        self._check_plain_text_is_plain()

    @classmethod
    def load(cls, directory: Path) -> ChatTokenizer:
        """Read ``tokenizer.json`` and the ``added_tokens_decoder`` of ``tokenizer_config.json``.

        Raises InputError naming the file and what is wrong with it.
        """
        path, config_path = directory / "tokenizer.json", directory / "tokenizer_config.json"
        definition = read_json_object(path, MAX_TOKENIZER_BYTES)
        config = read_json_object(config_path, MAX_TOKENIZER_BYTES) if config_path.exists() else {}
        checked = _checked(definition, _Definition, path)
        _require_byte_level(checked)
        declared = checked.added_tokens or ()
        named = _checked(config, _Config, config_path).added_tokens_decoder or {}
        added = {entry.id: AddedToken(entry.id, entry.content, entry.special) for entry in declared}
        for token_id, entry in named.items():
            added.setdefault(token_id, AddedToken(token_id, entry.content, entry.special))
        return cls(definition, tuple(added.values()))

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
                raise FrontendError(f"tokenizer.json: plain text can produce the control token {spelling!r}")


def _checked(content: dict[str, Any], shape: type[T], path: Path) -> T:
    """``content`` in its shape; raises FrontendError naming the place that does not fit."""
    try:
        return msgspec.convert(content, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise FrontendError(f"{path}: {error}") from error


def _require_byte_level(definition: _Definition) -> None:
    decoder = definition.decoder
    steps = decoder.decoders if decoder is not None and decoder.type == "Sequence" else [decoder]
    if definition.model.type != "BPE" or [step.type for step in steps if step is not None] != ["ByteLevel"]:
        raise FrontendError("tokenizer.json: a byte-level BPE (model BPE, decoder ByteLevel) is needed")


def _byte_of_char() -> dict[str, int]:
    """The inverse of the byte-level alphabet: printable Latin-1 stands for itself, the rest starts at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    others = (value for value in range(0x100) if chr(value) not in table)
    table.update({chr(0x100 + index): value for index, value in enumerate(others)})
    return table


def _token_bytes(definition: dict[str, Any], added: dict[int, AddedToken]) -> dict[int, bytes]:
    byte_of = _byte_of_char()
    table: dict[int, bytes] = {}
    for text, token_id in definition["model"]["vocab"].items():
        try:
            table[token_id] = bytes(byte_of[char] for char in text)
        except KeyError:  # not written in the byte-level alphabet: the library shows it as it is
            table[token_id] = text.encode()
    for token in added.values():
        table[token.id] = token.text.encode()
    return table
