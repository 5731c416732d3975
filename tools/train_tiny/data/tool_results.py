"""Turns after a tool ran: the answer repeats what the tool returned."""

import json
from typing import Any

from tools.train_tiny.data import words
from tools.train_tiny.data.base import Exchange, Message, Source, assistant, join, tool, user
from tools.train_tiny.data.schemas import string_value
from tools.train_tiny.data.tool_calls import family, make_calls, reasoning

ERRORS: tuple[str, ...] = ("not found", "permission denied", "timeout", "invalid input", "service unavailable")


def _field_value(source: Source) -> Any:
    kind = source.integer(0, 5)
    if kind == 0:
        return int(source.digits(source.integer(1, 5)))
    if kind == 1:
        return source.integer(1, 999) / 10
    if kind == 2:
        return source.chance(0.5)
    return string_value(source)


def say_field(name: str, value: Any) -> str:
    """Words one returned field, e.g. ``temperature is 18``."""
    return f"{name.replace('_', ' ')} is {value if isinstance(value, str) else json.dumps(value)}"


def say_record(record: dict[str, Any]) -> str:
    """Words a whole returned record."""
    text = join([f"the {say_field(name, value)}" for name, value in record.items()])
    return text[0].upper() + text[1:] + "."


def _record(source: Source, most: int) -> dict[str, Any]:
    if source.chance(0.2):
        weather = source.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "clear"))
        return {"temperature": source.integer(-10, 38), "condition": weather}
    names = source.rng.sample(words.PARAMETERS, source.integer(1, most))
    return {name: _field_value(source) for name in names}


def _result(source: Source) -> tuple[str, str]:
    """Returns (what a tool gave back, the sentence that reports it)."""
    kind = source.rng.random()
    if kind < 0.08:
        error = source.choice(ERRORS)
        return json.dumps({"error": error}), f"The tool failed: {error}."
    if kind < 0.16:
        return source.choice(('{"status": "ok"}', '{"ok": true}', "ok", "done", '{"success": true}')), "Done."
    if kind < 0.35:
        text = (
            string_value(source) if source.chance(0.5) else f"{source.choice(words.PEOPLE)} has {source.integer(1, 99)}"
        )
        return text, f"The tool returned: {text}"
    record = _record(source, 4)
    return json.dumps(record, ensure_ascii=False), say_record(record)


def tool_result(source: Source) -> Exchange:
    """Request, call, result, and the sentence that reports the result; several calls give one line each."""
    calls, offered, request = make_calls(source, source.choice((0, 0, 1, 2)))
    call = assistant("", reasoning(calls), [(item.function.name, item.arguments) for item in calls])
    results = [_result(source) for _ in calls]
    answer = assistant("\n".join(text for _, text in results), "I report the result.")
    messages = [user(request), call, *(tool(content) for content, _ in results), answer]
    return Exchange("tool-result", tuple(messages), tuple(item.tool() for item in offered), call_family=family(calls))


def tool_chain(source: Source) -> Exchange:
    """Two calls one after the other, the second only after the result of the first; the answer reports both."""
    first, offered, _ = make_calls(source, 0, most=1)
    second, more, _ = make_calls(source, source.choice((0, 1)), most=1)
    known = {function.name for function in offered}
    offered += [function for function in more if function.name not in known]
    if second[0].function.name in known:
        return tool_chain(source)
    template = source.choice(("First: {0} When you have the result: {1}", "Step 1: {0}\nStep 2, after the result: {1}"))
    messages: list[Message] = [user(template.format(first[0].request, second[0].request))]
    reports = []
    for calls in (first, second):
        content, report = _result(source)
        messages += [assistant("", reasoning(calls), [(calls[0].function.name, calls[0].arguments)]), tool(content)]
        reports.append(report)
    messages.append(assistant("\n".join(reports), "I report the results."))
    return Exchange("tool-result", tuple(messages), tuple(item.tool() for item in offered), call_family=family(first))


def tool_lookup(source: Source) -> Exchange:
    """The user wants one field of the returned record, then perhaps another."""
    calls, offered, request = make_calls(source, source.choice((0, 1)), most=1)
    record = {name: _field_value(source) for name in source.rng.sample(words.PARAMETERS, source.integer(2, 6))}
    names = list(record)
    source.rng.shuffle(names)
    call = assistant("", reasoning(calls), [(item.function.name, item.arguments) for item in calls])
    wish = source.choice((" Then tell me the {name}.", " I need the {name}.", " What is the {name}?"))
    request += wish.format(name=names[0].replace("_", " "))
    messages: list[Message] = [user(request), call, tool(json.dumps(record, ensure_ascii=False))]
    messages.append(assistant(f"The {say_field(names[0], record[names[0]])}.", "I report the result."))
    for name in names[1 : source.integer(1, 3)]:
        question = source.choice(("And the {name}?", "What about the {name}?", "What is the {name}?"))
        messages.append(user(question.format(name=name.replace("_", " "))))
        messages.append(assistant(f"The {say_field(name, record[name])}.", "The result above has it."))
    return Exchange("tool-result", tuple(messages), tuple(item.tool() for item in offered), call_family=family(calls))
