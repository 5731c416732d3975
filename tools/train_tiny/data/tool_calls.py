"""Requests that a tool call answers: one call, several at once, nested arguments, and requests that need no tool.

Held-out requests keep the wordings and shares of the first evaluation, so that its figures stay comparable; training
has more of both.
"""

import json
from dataclasses import dataclass
from typing import Any

from tools.train_tiny.data.base import Exchange, Source, Split, assistant, join, user
from tools.train_tiny.data.natural import RECIPES, SPELLINGS, VALUES, Recipe
from tools.train_tiny.data.schemas import Function, make_function, make_value, say_value

MORE_TOOLS = (0, 0, 1, 1, 2, 3, 5)
SINGLE_SHARE = {Split.HELD_OUT: 0.65, Split.TRAIN: 0.5}
OPENINGS: tuple[str, ...] = (
    "Call {name}",
    "Please {verb} the {thing}",
    "{Verb} the {thing}",
    "Use {name}",
    "I want to {verb} a {thing}",
    "Can you {verb} the {thing}",
)
MORE_OPENINGS: tuple[str, ...] = (
    *OPENINGS,
    "Run {name}",
    "Please call {name}",
    "Use the tool {name}",
    "Could you {verb} the {thing}",
    "I need you to {verb} the {thing}",
    "{Verb} a {thing} for me",
)
GREETINGS: tuple[str, ...] = ("", "", "", "Please help. ", "Hi! ")
MORE_GREETINGS: tuple[str, ...] = (*GREETINGS, "Hello. ", "Next: ", "Now this: ")


@dataclass(frozen=True)
class Call:
    """A call with the words that ask for it."""

    function: Function
    arguments: dict[str, Any]
    request: str


def _given(source: Source, function: Function) -> dict[str, Any]:
    """Chooses values for the required and some of the optional parameters, in schema order."""
    return {
        item.name: make_value(source, item)
        for item in function.parameters
        if item.name in function.required or source.chance(0.6)
    }


def random_call(source: Source, function: Function) -> Call:
    """Words a call of a random tool: by name or by its description, the values in any order."""
    arguments = _given(source, function)
    said = [(name, say_value(source, value)) for name, value in arguments.items()]
    if source.chance(0.3):
        source.rng.shuffle(said)
    verb, thing = function.phrase
    opening = source.choice(OPENINGS if source.split is Split.HELD_OUT else MORE_OPENINGS).format(
        name=function.name, verb=verb, Verb=verb.capitalize(), thing=thing
    )
    if not said:
        return Call(function, arguments, opening + ".")
    style = source.integer(0, 3 if source.split is Split.HELD_OUT else 6)
    if style == 0:
        details = " with " + join([f"{name} {value}" for name, value in said])
    elif style == 1:
        details = ": " + ", ".join(f"{name} = {value}" for name, value in said)
    elif style == 2:
        details = ":\n" + "\n".join(f"- {name}: {value}" for name, value in said)
    elif style == 3:
        details = ". " + join([f"The {name} is {value}" for name, value in said])
    elif style == 4:
        details = " (" + ", ".join(f"{name}: {value}" for name, value in said) + ")"
    elif style == 5:
        details = " using " + join([f"{value} as {name}" for name, value in said])
    else:
        details = " with these arguments: " + json.dumps(arguments, ensure_ascii=False)
    return Call(function, arguments, opening + details + ".")


def _spelling(source: Source, recipe: Recipe) -> dict[str, str]:
    spelling: dict[str, str] = {}
    for name in recipe.parameters:
        options = [option for option in SPELLINGS.get(name, (name,)) if option not in spelling.values()]
        spelling[name] = source.choice(options or [name])
    return spelling


def natural_call(source: Source, recipe: Recipe, function: Function, spelling: dict[str, str]) -> Call:
    """Words a call of an everyday tool with one of its recipe's requests."""
    request = source.choice(recipe.requests)
    values = {name: VALUES[maker](source) for name, maker in recipe.parameters.items() if "{" + name + "}" in request}
    arguments = {spelling[name]: value for name, value in values.items()}
    return Call(function, arguments, request.format(**values))


def _primary(source: Source) -> list[Call]:
    """Returns one to three calls of the same or different tools."""
    count = 1 if source.chance(SINGLE_SHARE[source.split]) else source.integer(2, 3)
    if source.chance(0.45):
        recipe = source.choice(RECIPES)
        spelling = _spelling(source, recipe)
        function = recipe.function(source, spelling)
        count = count if recipe.parameters else 1
        return [natural_call(source, recipe, function, spelling) for _ in range(count)]
    if count > 1 and source.chance(0.5):
        functions = [make_function(source, 3) for _ in range(count)]
        return [random_call(source, function) for function in functions]
    function = make_function(source)
    count = count if function.parameters else 1
    return [random_call(source, function) for _ in range(count)]


def _request(source: Source, calls: list[Call]) -> str:
    held_out = source.split is Split.HELD_OUT
    if len(calls) == 1:
        return source.choice(GREETINGS if held_out else MORE_GREETINGS) + calls[0].request
    requests = [call.request for call in calls]
    style = source.integer(0, 2 if held_out else 5)
    if style == 0:
        return " ".join(requests)
    if style == 1:
        return "\n".join(f"{number}. {text}" for number, text in enumerate(requests, 1))
    if style == 2:
        return " Then: ".join(requests)
    if style == 3:
        return "Do this:\n" + "\n".join(f"- {text}" for text in requests)
    return source.choice((" Also: ", " And then: ", "\n", "\n\n")).join(requests)


def other_functions(source: Source, used: set[str], count: int) -> list[Function]:
    """Returns ``count`` tools that the request does not need."""
    functions: list[Function] = []
    while len(functions) < count:
        if source.chance(0.4):
            recipe = source.choice(RECIPES)
            function = recipe.function(source, _spelling(source, recipe))
        else:
            function = make_function(source, 3)
        if function.name not in used:
            used.add(function.name)
            functions.append(function)
    return functions


def make_calls(source: Source, more: int | None = None, most: int = 3) -> tuple[list[Call], list[Function], str]:
    """Returns up to ``most`` calls, all tools offered (shuffled), and the request text."""
    calls = _primary(source) if most > 1 else _primary(source)[:1]
    functions = {call.function.name: call.function for call in calls}
    calls = [Call(functions[call.function.name], call.arguments, call.request) for call in calls]
    if any(set(call.arguments) - {item.name for item in call.function.parameters} for call in calls):
        return make_calls(source, more, most)
    count = source.choice(MORE_TOOLS) if more is None else more
    offered = [*functions.values(), *other_functions(source, set(functions), count)]
    source.rng.shuffle(offered)
    return calls, offered, _request(source, calls)


def reasoning(calls: list[Call]) -> str:
    """The thought before a call: which tools, in which order."""
    return "I call " + join([call.function.name for call in calls]) + "."


def family(calls: list[Call]) -> str:
    """Names the evaluation row a request belongs to."""
    if len(calls) > 1:
        return "tool-parallel"
    nested = any(isinstance(value, dict | list) for value in calls[0].arguments.values())
    return "tool-nested" if nested else "tool-single"


def tool_call(source: Source) -> Exchange:
    """A request that ends with the assistant's call."""
    calls, offered, request = make_calls(source)
    answer = assistant("", reasoning(calls), [(call.function.name, call.arguments) for call in calls])
    return Exchange(family(calls), (user(request), answer), tuple(function.tool() for function in offered))
