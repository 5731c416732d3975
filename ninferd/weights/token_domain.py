"""Which token ids a model has: what ``tokenizer.json`` and ``tokenizer_config.json`` say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from ninferd.errors import InputError
from ninferd.weights.resources import TOKENIZER, TOKENIZER_CONFIG, FrontendFiles, json_resource, place

T = TypeVar("T")
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _NamedToken(msgspec.Struct, frozen=True):
    content: str
    special: bool = False


class _DeclaredToken(_NamedToken, frozen=True, kw_only=True):
    id: _TokenId


class _Model(msgspec.Struct, frozen=True):
    vocab: Annotated[dict[str, _TokenId], msgspec.Meta(min_length=1)]
    type: str = "BPE"


class _Decoder(msgspec.Struct, frozen=True):
    type: str
    decoders: list[_Decoder] = []


class _Definition(msgspec.Struct, frozen=True):
    """What is read here of ``tokenizer.json``; the tokenizers library reads the rest."""

    model: _Model
    decoder: _Decoder | None = None
    added_tokens: list[_DeclaredToken] | None = None


class _Config(msgspec.Struct, frozen=True):
    """The same of ``tokenizer_config.json``."""

    added_tokens_decoder: dict[_TokenId, _NamedToken] | None = None


@dataclass(frozen=True)
class AddedToken:
    """A token that the tokenizer recognises as a whole."""

    id: int
    text: str
    special: bool  # hidden from the output unless tools are active


@dataclass(frozen=True)
class TokenDomain:
    """The ids from 0 to ``count`` - 1. Rows of the output head beyond are padding and must never be sampled."""

    count: int
    vocabulary: dict[str, int]  # of the byte-level BPE: text in its alphabet to id
    added: tuple[AddedToken, ...]
    definition: dict[str, Any]  # tokenizer.json


def read_token_domain(files: FrontendFiles) -> TokenDomain:
    """The token ids of a model whose tokenizer is a byte-level BPE.

    Raises InputError naming the file if it is missing or malformed, if two entries contradict each other, if the ids
    are not contiguous from 0 (with gaps, logits of ids that mean nothing could not be told from real ones), or if there
    are more than the model's vocab_size.
    """
    where = place(files, TOKENIZER)
    definition = json_resource(files, TOKENIZER)
    if definition is None:
        raise InputError(f"{where}: is missing, and a model cannot be talked to without its tokenizer")
    checked = _checked(definition, _Definition, where)
    _require_byte_level(checked, where)
    added = _added_tokens(checked, files)
    count = _contiguous({*checked.model.vocab.values(), *(token.id for token in added)}, where)
    rows = _vocab_size(files.config)
    if rows is not None and count > rows:
        raise InputError(f"{where}: has token ids up to {count - 1}, but the model has {rows} rows only (vocab_size)")
    return TokenDomain(count, checked.model.vocab, added, definition)


def token_count(files: FrontendFiles, vocab_size: int) -> int:
    """How many of ``vocab_size`` logits belong to tokens; all of them where the model has no tokenizer.

    Raises InputError if there is one that cannot be used, see ``read_token_domain``.
    """
    return vocab_size if files.resource(TOKENIZER) is None else read_token_domain(files).count


def _added_tokens(definition: _Definition, files: FrontendFiles) -> tuple[AddedToken, ...]:
    """Of both files, in id order of their first mention; InputError where they contradict each other."""
    where, config_where = place(files, TOKENIZER), place(files, TOKENIZER_CONFIG)
    config = _checked(json_resource(files, TOKENIZER_CONFIG) or {}, _Config, config_where)
    added: dict[int, AddedToken] = {}
    text_of: dict[int, str] = {}
    for text, token_id in definition.model.vocab.items():
        if text_of.setdefault(token_id, text) != text:
            raise InputError(f"{where}: model.vocab gives id {token_id} to both {text_of[token_id]!r} and {text!r}")
    for place_of, tokens in (
        (where, [(entry.id, entry) for entry in definition.added_tokens or ()]),
        (config_where, list((config.added_tokens_decoder or {}).items())),
    ):
        for token_id, entry in tokens:
            token = AddedToken(token_id, entry.content, entry.special)
            known = added.setdefault(token_id, token)
            if known != token:
                raise InputError(
                    f"{place_of}: added token {token_id} is {_words(token)}, but {where} says {_words(known)}"
                )
            if text_of.get(token_id, entry.content) != entry.content:
                raise InputError(
                    f"{place_of}: added token {token_id} is {entry.content!r}, but model.vocab of {where} gives this "
                    f"id to {text_of[token_id]!r}"
                )
    return tuple(added.values())


def _vocab_size(config: dict[str, Any]) -> int | None:
    nested = config.get("text_config")
    value = (nested if isinstance(nested, dict) else config).get("vocab_size")
    return value if type(value) is int else None


def _words(token: AddedToken) -> str:
    return f"{token.text!r} ({'special' if token.special else 'not special'})"


def _contiguous(ids: set[int], where: str) -> int:
    count = len(ids)
    if max(ids) >= count:
        gap = next(token_id for token_id in range(count) if token_id not in ids)
        raise InputError(
            f"{where}: its {count} token ids reach {max(ids)} and leave out {gap}; they must be contiguous from 0"
        )
    return count


def _checked(content: dict[str, Any], shape: type[T], where: str) -> T:
    """``content`` in its shape; raises InputError naming the place that does not fit."""
    try:
        return msgspec.convert(content, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from error


def _require_byte_level(definition: _Definition, where: str) -> None:
    decoder = definition.decoder
    steps = decoder.decoders if decoder is not None and decoder.type == "Sequence" else [decoder]
    if definition.model.type != "BPE" or [step.type for step in steps if step is not None] != ["ByteLevel"]:
        raise InputError(f"{where}: a byte-level BPE (model BPE, decoder ByteLevel) is needed")
