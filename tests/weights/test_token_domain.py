"""Which ids a tokenizer has, from both of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.token_domain import AddedToken, read_token_domain, token_count
from tests.support.frontends import FrontendDirectory, tiny_directory

END = {"id": 3, "content": "<|end|>", "special": True}
THINK = {"content": "<think>", "special": False}


def tokenizer(vocab: dict[str, int], added: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": {"type": "BPE", "vocab": vocab}, "decoder": {"type": "ByteLevel"}, "added_tokens": added}


def files(
    directory: Path, definition: dict[str, Any], named: dict[str, Any] | None = None, vocab_size: int = 8
) -> FrontendDirectory:
    (directory / "tokenizer.json").write_text(json.dumps(definition))
    (directory / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    if named is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": named}))
    return FrontendDirectory(directory)


VOCAB = {"a": 0, "b": 1, "c": 2}


def test_ids_of_both_files_are_merged(tmp_path: Path) -> None:
    domain = read_token_domain(files(tmp_path, tokenizer(VOCAB, [END]), {"3": END, "4": THINK}))
    assert domain.count == 5
    assert domain.added == (AddedToken(3, "<|end|>", True), AddedToken(4, "<think>", False))
    assert domain.vocabulary == VOCAB


def test_an_added_token_may_also_stand_in_the_vocabulary(tmp_path: Path) -> None:
    assert read_token_domain(files(tmp_path, tokenizer({**VOCAB, "<|end|>": 3}, [END]))).count == 4


def test_rows_without_a_token_do_not_count(tmp_path: Path) -> None:
    """Published models of the family have 248,077 tokens and 248,320 rows."""
    assert token_count(files(tmp_path, tokenizer(VOCAB, [END])), 8) == 4
    (tmp_path / "tokenizer.json").unlink()
    assert token_count(FrontendDirectory(tmp_path), 8) == 8


def test_the_shipped_tokenizer() -> None:
    assert read_token_domain(FrontendDirectory(tiny_directory())).count == 4096


@pytest.mark.parametrize(
    ("definition", "named", "message"),
    [
        pytest.param(
            tokenizer(VOCAB, [END | {"id": 5}]),
            None,
            r"tokenizer\.json: its 4 token ids reach 5 and leave out 3; they must be contiguous from 0",
            id="gap",
        ),
        pytest.param(
            tokenizer(VOCAB, []),
            {"4": THINK},
            r"tokenizer\.json: its 4 token ids reach 4 and leave out 3",
            id="gap before what the config adds",
        ),
        pytest.param(
            tokenizer(VOCAB, [END]),
            {"3": END | {"content": "<|stop|>"}},
            r"tokenizer_config\.json: added token 3 is '<\|stop\|>' \(special\), but .*\.json says '<\|end\|>'",
            id="other content",
        ),
        pytest.param(
            tokenizer(VOCAB, [END]),
            {"3": END | {"special": False}},
            r"tokenizer_config\.json: added token 3 is '<\|end\|>' \(not special\), but .* \(special\)",
            id="other flag",
        ),
        pytest.param(
            tokenizer(VOCAB, [END, END | {"content": "x"}]), None, r"added token 3 is 'x' \(special\), but", id="twice"
        ),
        pytest.param(
            tokenizer(VOCAB, [END | {"id": 1}]),
            None,
            r"added token 1 is '<\|end\|>', but model\.vocab of .* gives this id to 'b'",
            id="id of the vocabulary",
        ),
        pytest.param(
            tokenizer({"a": 0, "b": 0}, []), None, r"model\.vocab gives id 0 to both 'a' and 'b'", id="id given twice"
        ),
        pytest.param(tokenizer({"a": -1}, []), None, r"Expected `int` >= 0 - at", id="negative"),
        pytest.param(tokenizer({"a": 1 << 40}, []), None, r"Expected `int` <= 2147483647 - at", id="huge"),
        pytest.param(
            tokenizer({str(i): i for i in range(9)}, []),
            None,
            r"tokenizer\.json: has token ids up to 8, but the model has 8 rows only \(vocab_size\)",
            id="more tokens than rows",
        ),
        pytest.param(tokenizer(VOCAB, []), {"x": THINK}, r"tokenizer_config\.json: ", id="key that is no id"),
    ],
)
def test_contradictions_are_named(
    tmp_path: Path, definition: dict[str, Any], named: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_token_domain(files(tmp_path, definition, named))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"[]", "must hold a JSON object, not list"),
        (b"\xff", "is not UTF-8: .* at byte 0"),
    ],
    ids=["cut", "list", "encoding"],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    directory = files(tmp_path, tokenizer(VOCAB, []), {})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: {message}"):
        read_token_domain(directory)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json: is missing, and a model cannot be talked to without"):
        read_token_domain(FrontendDirectory(tmp_path))
