"""Strict parsing (column S of the case table, serving §5.7) and the streaming hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninferd.chat.tool_calls import ParsedCalls, ToolCall, ToolCallHold
from ninferd.chat.tool_values import contracts_of, json_string


def tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": value} for key, value in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


LONG_NAME = "n" * 64
TOOLS = contracts_of([tool("Bash", command="string", timeout="integer"), tool("ping"), tool(LONG_NAME)])


def call(name: str, *parameters: tuple[str, str]) -> str:
    """The canonical form that the template shows."""
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


LS = call("Bash", ("command", "ls"))
LS_CALL = ToolCall("Bash", '{"command":"ls"}')
PING = ToolCall("ping", "{}")


def command(value: str) -> list[ToolCall]:
    return [ToolCall("Bash", f'{{"command":{json_string(value)}}}')]


ACCEPTED = {
    "2 text before": (f"Listing.\n{LS}", "Listing.", [LS_CALL]),
    "3 two calls": (f"{LS}\n{call('ping')}", "", [LS_CALL, PING]),
    "4 no whitespace": (LS.replace("\n", ""), "", [LS_CALL]),
    "6 CRLF": (LS.replace("\n", "\r\n"), "", [LS_CALL]),
    "55 nested tag": (
        call("Bash", ("command", "p='<parameter=a>v</parameter>'")),
        "",
        command("p='<parameter=a>v</parameter>'"),
    ),
    "64 other tags in a value": (
        call("Bash", ("command", "echo <tool_call>x</tool_call> </function>")),
        "",
        command("echo <tool_call>x</tool_call> </function>"),
    ),
    "81 whitespace before the call is dropped": (f"A  \n\n{LS}", "A", [LS_CALL]),
    "30 typed values": (
        call("Bash", ("command", "ls"), ("timeout", "5")),
        "",
        [ToolCall("Bash", '{"command":"ls","timeout":5}')],
    ),
    "trailing whitespace": (f"{LS} \n\t", "", [LS_CALL]),
    "longest name": (call(LONG_NAME), "", [ToolCall(LONG_NAME, "{}")]),
}

REFUSED = {
    "31": (call("Nope", ("v", "1")), "undeclared_tool"),
    "32": (call("bad.name", ("v", "1")), "invalid_tool_name"),
    "33": (call("Bash", ("command", "a"), ("command", "b")), "duplicate_parameter"),
    "34": (f"{LS}\nDone.", "trailing_content"),
    "35 no </tool_call>": (LS.removesuffix("</tool_call>"), "malformed_structure"),
    "36 no </function> either": (LS.removesuffix("</function>\n</tool_call>"), "malformed_structure"),
    "37 cut value": ("<tool_call>\n<function=Bash>\n<parameter=command>\ncargo te", "malformed_structure"),
    "38 cut parameter name": ("<tool_call>\n<function=Bash>\n<parameter=comm", "malformed_structure"),
    "39": ("<tool_call>\n<function=Bash>\n", "malformed_structure"),
    "40": (LS.replace("</function>", "</function>\n</function>"), "malformed_structure"),
    "41": (LS.replace("<function", "function"), "malformed_structure"),
    "42": (LS.replace("<function", "<|im_start|>function"), "malformed_structure"),
    "45": (LS.replace("<function", "<<function"), "malformed_structure"),
    "46": (LS.replace("<function=Bash>", "<Bash>"), "malformed_structure"),
    "49": (LS.replace("=Bash>", "=Bash"), "invalid_tool_name"),
    "50": (LS.replace("=Bash>", "= Bash>"), "invalid_tool_name"),
    "51": ("<tool_call>\n<function>Bash\n</function>\n</tool_call>", "malformed_structure"),
    "52": ("<tool_call>\nI will call it now\n</tool_call>", "malformed_structure"),
    "53": ("<tool_call>", "malformed_structure"),
    "54": (f"The <tool_call> tag. {LS}", "malformed_structure"),
    "56": (call("Bash", ("command", "echo '</parameter>'")), "malformed_structure"),
    "57": (call("Bash", ("command", "x\n</parameter>\n</function>\ny")), "malformed_structure"),
    "60": (call("Bash", ("command", "echo '<parameter=zz>'")), "malformed_structure"),
    "62": (LS.replace("\n</parameter>", ""), "malformed_structure"),
    "65": (f"{LS}\n<tool_call>\n<function=Ba", "invalid_tool_name"),
    "66": (f"{LS}\n<tool_call>\n<function=ping>\n</function>", "malformed_structure"),
    "69": (f"{LS}\nand\n{call('ping')}", "trailing_content"),
    "70": (f"{LS}\n</tool_call>", "trailing_content"),
    "71": (f"<tool_call>\n{call('ping')}\n</tool_call>", "malformed_structure"),
    "80": (f"{LS}\n</think>\nok", "trailing_content"),
    "82": (call("n" * 65), "invalid_tool_name"),
    "83": ('<tool_call>\n{"name":"ping","arguments":{}}\n</tool_call>', "malformed_structure"),
    "empty parameter name": (LS.replace("=command>", "=>"), "malformed_structure"),
}

UNTOUCHED = {
    "1": "Hi there",
    "72 no opener": "Go.\n<function=Bash>\n</function>\n</tool_call>",
    "84": '<function_calls>\n<invoke name="Bash">\n</invoke>\n</function_calls>',
    "almost a marker": "a <tool_cal> b <tool_call",
    "whitespace": " \n ",
}


def run(pieces: list[str], **options: Any) -> tuple[str, ParsedCalls | str | None]:
    hold = ToolCallHold(TOOLS, **options)
    shown = "".join(hold.push(piece) for piece in pieces)
    rest, parsed = hold.finish()
    return shown + rest, parsed


def pieces_of(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize(("text", "content", "calls"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(text: str, content: str, calls: list[ToolCall], size: int) -> None:
    shown, parsed = run(pieces_of(text, size))
    assert shown == content
    assert isinstance(parsed, ParsedCalls)
    assert list(parsed.calls) == calls


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_text_is_returned_unchanged(text: str, reason: str, size: int) -> None:
    assert run(pieces_of(f"before \n{text}", size)) == (f"before \n{text}", reason)


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("text", UNTOUCHED.values(), ids=UNTOUCHED)
def test_text_without_a_region(text: str, size: int) -> None:
    assert run(pieces_of(text, size)) == (text, None)


TAGS = ("<tool_call>", "</tool_call>", "<function=Bash>", "</function>", "<parameter=command>", "</parameter>")
FRAGMENTS = st.lists(st.sampled_from([*TAGS, "ls", "\n", " ", "<", "<tool", "text"]), max_size=14).map("".join)


@given(FRAGMENTS | st.sampled_from([text for text, *_ in ACCEPTED.values()]), st.data())
def test_every_cut_gives_the_same(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = run([text])
    assert run(pieces) == whole == run(list(text))
    if not isinstance(whole[1], ParsedCalls):
        assert whole[0] == text


@pytest.mark.parametrize(
    "flood", ["<parameter=" * 60_000, "<parameter=a>" * 60_000, "<parameter=>" * 60_000, "</parameter>" * 60_000]
)
def test_floods_of_tags_are_read_in_one_pass(flood: str) -> None:
    """Would take minutes if every opener were searched to the end of the value."""
    _, parsed = run([call("Bash", ("command", flood))])
    accepted = flood.startswith(("<parameter=<", "<parameter=>"))
    assert isinstance(parsed, ParsedCalls) is accepted


def test_counts_of_values() -> None:
    _, parsed = run([call("Bash", ("command", "ls"), ("timeout", "soon"), ("extra", "1"))])
    assert isinstance(parsed, ParsedCalls)
    assert (parsed.schema_mismatches, parsed.omitted_arguments) == (2, 0)
    _, parsed = run([call("Bash", ("timeout", ""))])
    assert isinstance(parsed, ParsedCalls)
    assert (parsed.calls, parsed.omitted_arguments) == ((ToolCall("Bash", "{}"),), 1)


def test_without_tools_nothing_is_held_or_parsed() -> None:
    hold = ToolCallHold({})
    assert hold.push(f"a  {LS}<tool") == f"a  {LS}<tool"
    assert hold.finish() == ("", None)


def test_only_whitespace_and_a_marker_prefix_are_held() -> None:
    hold = ToolCallHold(TOOLS)
    assert hold.push("text \n<tool_") == "text"
    assert hold.push("box>") == " \n<tool_box>"


def test_seeded_region_starts_inside_a_call() -> None:
    seed = "<tool_call>\n<function=Bash>\n"
    shown, parsed = run(list(LS.removeprefix(seed)), seed=seed)
    assert shown == ""
    assert isinstance(parsed, ParsedCalls)
    assert parsed.calls == (LS_CALL,)
    assert run(["I would rather not."], seed=seed) == ("I would rather not.", "malformed_structure")


def test_first_call_is_complete_exactly_at_its_end() -> None:
    hold = ToolCallHold(TOOLS)
    complete = []
    text = f"x\n{call('Bash', ('command', 'echo </tool_call>'))}"
    for char in text:
        hold.push(char)
        complete.append(hold.first_call_is_complete())
    assert complete == [False] * (len(text) - 1) + [True]
