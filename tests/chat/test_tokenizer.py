"""Encoding equals the tokenizers library's; control tokens come from the template only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ninferd.chat.errors import FrontendError
from ninferd.chat.tokenizer import ChatTokenizer
from ninferd.errors import InputError
from tests.support.frontends import FrontendDirectory, tiny_directory, tiny_frontend

LIBRARY = Tokenizer.from_file(str(tiny_directory() / "tokenizer.json"))


@given(st.text(max_size=60).filter(lambda text: "<" not in text))
def test_ordinary_text_equals_the_library(text: str) -> None:
    assert tiny_frontend().tokenizer.encode_text(text) == LIBRARY.encode(text, add_special_tokens=False).ids


@given(st.text(max_size=20), st.text(max_size=20))
def test_marked_text_equals_the_library_whole(before: str, after: str) -> None:
    tokenizer, marks = tiny_frontend().tokenizer, tiny_frontend().template.marks
    text = f"{before}<|im_end|>{after}<think>\n"
    assert tokenizer.encode_rendered(marks.mark(text), marks) == LIBRARY.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("spelling", sorted(tiny_frontend().tokenizer.control_spellings))
def test_spelling_in_text_is_ordinary_and_reads_back(spelling: str) -> None:
    tokenizer = tiny_frontend().tokenizer
    ids = tokenizer.encode_text(f"a {spelling} b{spelling}")
    assert not set(ids) & set(tokenizer.added)
    assert tokenizer.decode(ids) == f"a {spelling} b{spelling}"


@given(st.lists(st.integers(0, LIBRARY.get_vocab_size() - 1), max_size=40))
def test_decode_equals_the_library(ids: list[int]) -> None:
    assert tiny_frontend().tokenizer.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


def test_ids_of_control_tokens() -> None:
    tokenizer = tiny_frontend().tokenizer
    assert tokenizer.id_of("</think>") == LIBRARY.token_to_id("</think>")
    assert tokenizer.id_of("no such token") is None


def definition() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tiny_directory() / "tokenizer.json").read_text())
    return content


def write(directory: Path, content: dict[str, Any]) -> FrontendDirectory:
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return FrontendDirectory(directory)


def test_tokens_known_to_the_config_only_are_control_tokens(tmp_path: Path) -> None:
    content = definition()
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|audio_pad|>"]
    write(tmp_path, content)
    decoder = {"4095": {"content": "<|audio_pad|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    assert ChatTokenizer.load(FrontendDirectory(tmp_path)).id_of("<|audio_pad|>") == 4095


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"decoder": {"type": "Metaspace"}}, "byte-level", id="another decoder"),
        pytest.param({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "byte-level", id="another model"),
        pytest.param({"model": {"vocab": {}}}, r"length >= 1 - at `\$\.model\.vocab`", id="no vocabulary"),
        pytest.param({"model": []}, r"tokenizer\.json: Expected `object`, got `array` - at `\$\.model`", id="no model"),
        pytest.param({"decoder": {"type": "Sequence", "decoders": [5]}}, r"at `\$\.decoder", id="decoder of no kind"),
        pytest.param({"added_tokens": [{"id": "x", "content": "y"}]}, r"at `\$\.added_tokens\[0\]\.id`", id="id"),
        pytest.param({"pre_tokenizer": {"type": "Nonsense"}}, "cannot be used", id="unreadable"),
    ],
)
def test_unsupported_tokenizers_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ChatTokenizer.load(write(tmp_path, {**definition(), **change}))


def test_plain_text_that_would_be_control_is_refused(tmp_path: Path) -> None:
    content = definition()
    content["model"]["ignore_merges"] = True
    content["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    content["model"]["vocab"]["<think>"] = next(t["id"] for t in content["added_tokens"] if t["content"] == "<think>")
    with pytest.raises(FrontendError, match=r"tokenizer\.json: plain text can produce the control token '<think>'"):
        ChatTokenizer.load(write(tmp_path, content))
