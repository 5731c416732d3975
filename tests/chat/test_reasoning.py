from __future__ import annotations

import pytest

from ninferd.chat.reasoning import Channel, ReasoningSplitter, ThinkTokens

OPEN, CLOSE, START, TEXT = 1, 2, 3, 9
TOKENS = ThinkTokens(OPEN, CLOSE, START)
NO_TOKENS = ThinkTokens(None, None, None)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        pytest.param([START, TEXT, OPEN, TEXT], True, id="opened by the generation prompt"),
        pytest.param([START, TEXT, OPEN, TEXT, CLOSE, TEXT], False, id="closed by it"),
        pytest.param([START, OPEN, START, TEXT], False, id="an earlier turn's block does not count"),
        pytest.param([START, OPEN, CLOSE, START, OPEN], True, id="reopened in the last turn"),
        pytest.param([TEXT], False, id="no turn at all"),
        pytest.param([], False, id="empty"),
    ],
)
def test_channel_at_the_start(prompt: list[int], is_open: bool) -> None:
    assert TOKENS.is_open_after(prompt) is is_open
    assert not NO_TOKENS.is_open_after(prompt)


def channels(ids: list[int], *, starts_open: bool, tokens: ThinkTokens = TOKENS) -> list[Channel | None]:
    """The channel of each token, None for a marker."""
    splitter = ReasoningSplitter(tokens, starts_open=starts_open)
    return [splitter.channel if splitter.push(token_id) else None for token_id in ids]


@pytest.mark.parametrize(
    ("ids", "starts_open", "expected"),
    [
        pytest.param([TEXT, CLOSE, TEXT], True, ["reasoning", None, "content"], id="closed once"),
        pytest.param([CLOSE, OPEN, CLOSE], True, [None, "content", "content"], id="never opens again"),
        pytest.param([OPEN, TEXT, CLOSE, TEXT], False, [None, "reasoning", None, "content"], id="opened by the model"),
        pytest.param([TEXT, OPEN, TEXT], False, ["content"] * 3, id="only with its first token"),
        pytest.param([CLOSE, TEXT], False, ["content", "content"], id="stray close is text"),
        pytest.param([OPEN, CLOSE], True, ["reasoning", None], id="open inside reasoning is text"),
    ],
)
def test_channels(ids: list[int], starts_open: bool, expected: list[Channel | None]) -> None:
    assert channels(ids, starts_open=starts_open) == expected


def test_tokenizer_without_think_tokens_has_one_channel() -> None:
    assert channels([OPEN, CLOSE], starts_open=False, tokens=NO_TOKENS) == ["content", "content"]
