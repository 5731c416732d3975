"""Random function tools: names, parameters of every JSON type, nested objects, and values that fit them."""

import json
from dataclasses import dataclass
from typing import Any

from tools.train_tiny.data import words
from tools.train_tiny.data.base import Source, Split, Tool, join

DOMAINS: tuple[str, ...] = ("example.com", "mail.org", "test.net")
OBJECT_SHARE = {Split.HELD_OUT: (0.13, 0.16), Split.TRAIN: (0.18, 0.25)}
"""Cumulative shares of parameters that are objects and lists of objects."""
SUFFIXES: tuple[str, ...] = ("txt", "py", "json", "md", "csv", "log")


@dataclass(frozen=True)
class Parameter:
    """One property of a tool's schema; ``fields`` are those of a nested object."""

    name: str
    schema: dict[str, Any]
    fields: tuple["Parameter", ...] = ()

    @property
    def kind(self) -> str:
        """The JSON type."""
        return str(self.schema["type"])


@dataclass(frozen=True)
class Function:
    """A tool; calls give the parameters in this order, and ``phrase`` is its (verb, object) in plain words."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    required: tuple[str, ...]
    phrase: tuple[str, str] = ("", "")
    strict: int = 0

    def tool(self) -> Tool:
        """Returns the OpenAI form of the tool; ``strict`` 1 closes the schema, 2 also adds the ``strict`` flag."""
        schema = object_schema(self.parameters, self.required)
        if self.strict:
            schema["additionalProperties"] = False
        function: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": schema}
        if self.strict > 1:
            function["strict"] = True
        return {"type": "function", "function": function}


def object_schema(parameters: tuple[Parameter, ...], required: tuple[str, ...]) -> dict[str, Any]:
    """Returns the JSON schema of an object with these properties."""
    schema: dict[str, Any] = {"type": "object", "properties": {item.name: item.schema for item in parameters}}
    if required:
        schema["required"] = list(required)
    return schema


def string_value(source: Source) -> str:
    """Returns a string of one of the shapes that tool arguments usually have."""
    kind = source.integer(0, 9)
    if kind == 0:
        return source.choice(words.CITIES)
    if kind == 1:
        return source.choice(words.PEOPLE)
    if kind == 2:
        return f"{source.choice(words.ADJECTIVES)} {source.choice(words.NOUNS)}"
    if kind == 3:
        return f"{source.choice(words.PEOPLE).lower()}@{source.choice(DOMAINS)}"
    if kind == 4:
        return f"20{source.integer(20, 39)}-{source.integer(1, 12):02d}-{source.integer(1, 28):02d}"
    if kind == 5:
        return f"/{source.choice(words.OBJECTS)}/{source.choice(words.NOUNS)}.{source.choice(SUFFIXES)}"
    if kind == 6:
        return f"{source.choice('ABCDEFGHKLMNPRSTXYZ')}{source.choice('ABCDEFGHKLMNPRSTXYZ')}-{source.digits(3)}"
    if kind == 7:
        return f"{source.choice(words.NOUNS)}-{source.choice(words.NOUNS)}"
    return source.choice(words.NOUNS)


def scalar_schema(source: Source, nested: bool = False) -> dict[str, Any]:
    """Returns the schema of a string, enum, integer, number, boolean, or (not ``nested``) array parameter."""
    kind = source.integer(0, 9)
    if kind <= 3:
        return {"type": "string"}
    if kind == 4:
        return {"type": "string", "enum": source.rng.sample(words.ADJECTIVES, source.integer(2, 4))}
    if kind <= 6 or (nested and kind == 9):
        return {"type": "integer"}
    if kind == 7:
        return {"type": "number"}
    if kind == 8:
        return {"type": "boolean"}
    return {"type": "array", "items": {"type": source.choice(("string", "integer"))}}


def describe(source: Source, name: str) -> str:
    """Returns a parameter's description, now and then a long one from running text."""
    if source.filler and source.chance(0.1):
        return source.choice(source.filler).split("\n")[0][:160]
    return source.choice((f"The {name} of the {source.choice(words.OBJECTS)}.", f"The {name}.", f"Which {name} to use"))


def make_fields(source: Source) -> tuple[Parameter, ...]:
    """Returns one to three fields of a nested object; one in ten is an object itself."""
    fields = []
    for name in source.rng.sample(words.PARAMETERS, source.integer(1, 3)):
        if source.chance(0.1):
            inner = (Parameter(source.choice(words.PARAMETERS), scalar_schema(source, nested=True)),)
            fields.append(Parameter(name, object_schema(inner, ()), inner))
        else:
            fields.append(Parameter(name, scalar_schema(source, nested=True)))
    return tuple(fields)


def make_parameter(source: Source, name: str) -> Parameter:
    """Returns a parameter of a random type; one in six (in training four) is an object or a list of objects."""
    kind, (objects, lists) = source.rng.random(), OBJECT_SHARE[source.split]
    if kind < objects:
        fields = make_fields(source)
        return Parameter(name, object_schema(fields, ()), fields)
    if kind < lists:
        fields = make_fields(source)[:2]
        return Parameter(name, {"type": "array", "items": object_schema(fields, ())}, fields)
    schema = scalar_schema(source)
    if source.chance(0.3):
        text = describe(source, name)
        schema = {**schema, "description": text} if source.chance(0.6) else {"description": text, **schema}
    return Parameter(name, schema)


def function_name(source: Source, verb: str, thing: str) -> str:
    """Spells a function name in one of the usual ways."""
    kind = source.integer(0, 9)
    if kind == 0:
        return f"{verb}{thing.capitalize()}"
    if kind == 1:
        return f"{verb.capitalize()}{thing.capitalize()}"
    if kind == 2:
        return f"{thing}_{verb}"
    return f"{verb}_{thing}"


def make_function(source: Source, most: int = 4) -> Function:
    """Returns a function whose (verb, object) pair belongs to this split, with up to ``most`` parameters."""
    pair = source.of_split(lambda: f"{source.choice(words.VERBS)}_{source.choice(words.OBJECTS)}")
    verb, thing = pair.split("_")
    names = source.rng.sample(words.PARAMETERS, source.integer(0 if source.chance(0.1) else 1, most))
    parameters = tuple(make_parameter(source, item) for item in names)
    required = tuple(item.name for item in parameters if source.chance(0.7))
    description = source.choice(
        (f"{verb.capitalize()} the {thing}.", f"{verb.capitalize()} a {thing}.", f"Can {verb} {thing}s.")
    )
    if source.filler and source.chance(0.08):
        description += " " + source.choice(source.filler).split("\n")[0][:240]
    strict = source.choice((0, 0, 0, 0, 1, 2))
    return Function(function_name(source, verb, thing), description, parameters, required, (verb, thing), strict)


def make_value(source: Source, parameter: Parameter) -> Any:
    """Returns a value that fits the parameter's schema."""
    if parameter.fields and parameter.kind == "array":
        return [{item.name: make_value(source, item) for item in parameter.fields} for _ in range(source.integer(1, 2))]
    if parameter.fields:
        return {item.name: make_value(source, item) for item in parameter.fields}
    schema = parameter.schema
    if "enum" in schema:
        return source.choice(schema["enum"])
    if parameter.kind == "string":
        return string_value(source)
    if parameter.kind == "integer":
        return int(source.digits(source.integer(1, 4)))
    if parameter.kind == "number":
        return source.integer(1, 999) / source.choice((10, 100, 2))
    if parameter.kind == "boolean":
        return source.chance(0.5)
    count = source.integer(1, 3)
    if schema["items"]["type"] == "integer":
        return [source.integer(1, 999) for _ in range(count)]
    return [source.choice(words.NOUNS) for _ in range(count)]


def say_value(source: Source, value: Any) -> str:
    """Words a value the way a user would: text bare or quoted, lists spoken or as JSON, objects spoken or as JSON."""
    if isinstance(value, str):
        return f'"{value}"' if source.chance(0.35) else value
    if isinstance(value, list) and not isinstance(value[0], dict) and source.chance(0.5):
        return join([str(item) for item in value])
    if isinstance(value, dict) and source.chance(0.5):
        return join([f"{name} {say_value(source, item)}" for name, item in value.items()])
    return json.dumps(value, ensure_ascii=False)
