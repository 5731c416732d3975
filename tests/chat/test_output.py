"""From token ids to reasoning, text and calls, for every batching of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat.conversation import Conversation, Message, ThinkingOptions
from ninferd.chat.output import ContentDelta, OutputReader, ReasoningDelta, ToolCallsDelta
from ninferd.chat.tool_calls import ToolCall
from ninferd.engine.messages import TokenLogprob, TokenLogprobs
from tests.support.frontends import make_settings, tiny_frontend

FRONTEND = tiny_frontend()
TOKENIZER = FRONTEND.tokenizer
CLOSE, CALL_OPEN, CALL_CLOSE = (
    token_id for text in ("</think>", "<tool_call>", "</tool_call>") if (token_id := TOKENIZER.id_of(text)) is not None
)
EOS = FRONTEND.stop_token_ids[0]
BASH = {
    "type": "function",
    "function": {"name": "Bash", "parameters": {"properties": {"command": {"type": "string"}}}},
}
CALL_TEXT = "\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n"


@dataclass(frozen=True)
class Answer:
    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    fallback: str | None


def ids(*parts: str | int) -> list[int]:
    """Token ids of texts and single tokens in a row."""
    return [i for part in parts for i in ([part] if isinstance(part, int) else TOKENIZER.encode_text(part))]


def reader(*, thinking: bool = True, tools: Sequence[dict[str, Any]] = (), **options: Any) -> OutputReader:
    conversation = Conversation(
        (Message("user", "q"),),
        tools=tuple(tools),
        callable_tools=frozenset(tool["function"]["name"] for tool in tools),
        thinking=ThinkingOptions(enable_thinking=thinking),
    )
    prompt = FRONTEND.prepare(conversation, make_settings(), max_context=2000)
    return OutputReader(FRONTEND, prompt, **{"stop": (), "first_call_only": False, **options})


def read(output: OutputReader, token_ids: Sequence[int]) -> Answer:
    deltas = []
    for token_id in token_ids:
        if output.complete:
            break
        deltas.extend(output.push(token_id, None))
    ending = output.finish()
    deltas.extend(ending.deltas)
    order = [type(delta) for delta in deltas]
    assert order == sorted(order, key=[ReasoningDelta, ContentDelta, ToolCallsDelta].index)
    assert all(delta.text for delta in deltas if not isinstance(delta, ToolCallsDelta))
    return Answer(
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)),
        tuple(call for delta in deltas if isinstance(delta, ToolCallsDelta) for call in delta.calls),
        ending.fallback,
    )


@pytest.mark.parametrize(
    ("token_ids", "reasoning", "content"),
    [
        pytest.param(ids("why\n", CLOSE, "\n\nBecause.", EOS), "why", "Because.", id="both channels"),
        pytest.param(ids(CLOSE, "\n\nBecause."), "", "Because.", id="no reasoning"),
        pytest.param(ids("  why not "), "why not", "", id="cut while reasoning"),
        pytest.param(ids("a", CLOSE, "b", CLOSE, "c"), "a", "b</think>c", id="second close is text"),
        pytest.param(ids("a", CLOSE, "\n\n  b \n", EOS), "a", "  b \n", id="only newlines are dropped before text"),
        pytest.param([EOS], "", "", id="nothing"),
    ],
)
def test_thinking(token_ids: list[int], reasoning: str, content: str) -> None:
    assert read(reader(), token_ids) == Answer(reasoning, content, (), None)


def test_without_thinking_all_is_content() -> None:
    assert read(reader(thinking=False), ids("\n\nplain", EOS)) == Answer("", "\n\nplain", (), None)


@pytest.mark.parametrize(
    ("token_ids", "reasoning", "content", "complete"),
    [
        pytest.param(ids("one END two", CLOSE, "x"), "one", "", True, id="in reasoning"),
        pytest.param(ids("r", CLOSE, "one END two"), "r", "one ", True, id="in content"),
        pytest.param(ids("one EN", CLOSE, "D two"), "one EN", "D two", False, id="not across channels"),
        pytest.param(ids("r", CLOSE, "one EN"), "r", "one EN", False, id="held suffix is released"),
    ],
)
def test_stop_strings_on_both_channels(token_ids: list[int], reasoning: str, content: str, complete: bool) -> None:
    output = reader(stop=("END",))
    assert read(output, token_ids) == Answer(reasoning, content, (), None)
    assert output.complete is complete


def test_tool_call_after_text() -> None:
    answer = read(reader(tools=[BASH]), ids("r", CLOSE, "\n\nListing.\n", CALL_OPEN, CALL_TEXT, CALL_CLOSE, EOS))
    assert answer == Answer("r", "Listing.", (ToolCall("Bash", '{"command":"ls"}'),), None)


def test_refused_markup_is_text() -> None:
    answer = read(reader(tools=[BASH]), ids(CLOSE, "Use ", CALL_OPEN, " like so", EOS))
    assert answer == Answer("", "Use <tool_call> like so", (), "malformed_structure")


def test_markup_without_tools_is_text() -> None:
    text = f"<tool_call>{CALL_TEXT}</tool_call>"
    assert read(reader(), ids(CLOSE, CALL_OPEN, CALL_TEXT, CALL_CLOSE)) == Answer("", text, (), None)


def test_first_call_only_ends_at_its_end() -> None:
    output = reader(tools=[BASH], first_call_only=True)
    token_ids = ids(CLOSE, CALL_OPEN, CALL_TEXT, CALL_CLOSE, "\n", CALL_OPEN, CALL_TEXT, CALL_CLOSE)
    answer = read(output, token_ids)
    assert answer.calls == (ToolCall("Bash", '{"command":"ls"}'),)
    assert output.complete
    assert output.tokens == len(ids(CLOSE, CALL_OPEN, CALL_TEXT, CALL_CLOSE))


def test_special_tokens_show_only_with_tools() -> None:
    start = TOKENIZER.id_of("<|im_start|>")
    assert start is not None
    assert read(reader(thinking=False), ids("a", start, "b")).content == "ab"
    assert read(reader(thinking=False, tools=[BASH]), ids("a", start, "b")).content == "a<|im_start|>b"


def test_token_counts() -> None:
    output = reader()
    token_ids = ids("why", CLOSE, "Because.", EOS)
    read(output, token_ids)
    assert output.tokens == len(token_ids)
    assert output.reasoning_tokens == len(ids("why")) + 1


def test_logprobs_are_of_the_answer_tokens() -> None:
    output = reader(tools=[BASH])
    token_ids = ids("why", CLOSE, "Yes é", EOS)
    found: list[int] = []
    for token_id in token_ids:
        for delta in output.push(token_id, TokenLogprobs(TokenLogprob(token_id, -1.0), ())):
            if isinstance(delta, ContentDelta):
                found += [entry.chosen.token_id for entry in delta.logprobs]
    for delta in output.finish().deltas:
        assert isinstance(delta, ContentDelta)
        found += [entry.chosen.token_id for entry in delta.logprobs]
    assert found == ids("Yes é")


@given(st.text("ab\n<é ", max_size=12), st.text("ab\n<é ", max_size=12))
def test_text_survives(reasoning: str, content: str) -> None:
    answer = read(reader(tools=[BASH]), ids(reasoning, CLOSE, content, EOS))
    assert answer == Answer(reasoning.strip(), content.lstrip("\n"), (), None)
