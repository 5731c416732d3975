"""Streaming text equals decoding whole, for any tokens and any split of characters over tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat.detokenizer import Detokenizer
from tests.support.frontends import tiny_frontend

TOKENIZER = tiny_frontend().tokenizer
BYTE_TOKENS = {value[0]: token_id for token_id, value in TOKENIZER.token_bytes.items() if len(value) == 1}


def stream(ids: list[int], *, show_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, show_special=show_special)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, 4095), max_size=40))
def test_any_tokens(ids: list[int]) -> None:
    assert "".join(stream(ids)) == TOKENIZER.decode(ids)


@given(st.text(max_size=20))
def test_one_byte_per_token(text: str) -> None:
    """The finest split of a text: a character appears with its last byte, never before."""
    pieces = stream([BYTE_TOKENS[byte] for byte in text.encode()])
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces) or "�" in text


@given(st.binary(max_size=20))
def test_invalid_bytes(data: bytes) -> None:
    assert "".join(stream([BYTE_TOKENS[byte] for byte in data])) == data.decode("utf-8", "replace")


def test_incomplete_character_waits_and_then_is_replaced() -> None:
    first, second = (BYTE_TOKENS[byte] for byte in "é".encode())
    assert stream([first, second]) == ["", "é", ""]
    assert stream([first]) == ["", "�"]


def test_flush_forgets_the_incomplete_character() -> None:
    detokenizer = Detokenizer(TOKENIZER, show_special=True)
    first, second = (BYTE_TOKENS[byte] for byte in "é".encode())
    assert [detokenizer.push(first), detokenizer.flush(), detokenizer.push(first), detokenizer.push(second)] == [
        "",
        "�",
        "",
        "é",
    ]


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    special, marker = TOKENIZER.id_of("<|im_start|>"), TOKENIZER.id_of("<tool_call>")
    assert special is not None
    assert marker is not None
    assert "".join(stream([special, marker], show_special=False)) == "<tool_call>"
    assert "".join(stream([special, marker])) == "<|im_start|><tool_call>"


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    assert "".join(stream([10**6])) == ""
