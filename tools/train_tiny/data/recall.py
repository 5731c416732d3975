"""Key-value and needle recall: facts stated early in the context, asked for later."""

from collections.abc import Callable
from dataclasses import dataclass

from tools.train_tiny.data import words
from tools.train_tiny.data.base import Exchange, Message, Source, Split, assistant, user

RELATIONS: dict[str, Callable[[Source], str]] = {
    "code": lambda source: source.digits(4),
    "number": lambda source: source.digits(source.integer(2, 6)),
    "price": lambda source: source.digits(3),
    "city": lambda source: source.choice(words.CITIES),
    "owner": lambda source: source.choice(words.PEOPLE),
    "password": lambda source: f"{source.choice(words.NOUNS)}{source.digits(2)}",
    "label": lambda source: f"{source.choice(words.ADJECTIVES)} {source.choice(words.NOUNS)}",
    "secret": lambda source: source.choice(words.NOUNS),
}

STATEMENTS: tuple[str, ...] = (
    "The {relation} for '{key}' is {value}.",
    "The {relation} of {key} is {value}.",
    "Remember that the {relation} for {key} is {value}.",
    "{key} has the {relation} {value}.",
    "The {relation} for {key} is: {value}",
    "Note: {key} -> {relation} {value}.",
    "{key}: {relation} {value}",
    "{relation}[{key}] = {value}",
    '{{"key": "{key}", "{relation}": "{value}"}}',
)
SENTENCES = 6
"""The first statements are whole sentences, fit to stand inside running text."""

QUESTIONS: tuple[str, ...] = (
    "What is the {relation} for '{key}'?",
    "What is the {relation} of {key}?",
    "What is the {relation} for {key}?",
    "Tell me the {relation} for {key}.",
    "Which {relation} does {key} have?",
    "I need the {relation} of {key}.",
    "What was the {relation} for {key} again?",
    "Please recall the {relation} of {key}.",
    "{key}: {relation}?",
)

LONE_STATEMENTS: tuple[str, ...] = (
    "The {key} {relation} is {value}.",
    "Remember: the {key} {relation} is {value}.",
    "My {key} {relation} is {value}.",
)
LONE_QUESTIONS: tuple[str, ...] = (
    "What is the {key} {relation}?",
    "Tell me the {key} {relation}.",
    "What was the {key} {relation}?",
    "What is my {key} {relation}?",
)
LONE_KEYS: tuple[str, ...] = (
    "secret",
    "magic",
    "special",
    "favorite",
    "hidden",
    "lucky",
    "access",
    "door",
    "test",
    "first",
)

INTRODUCTIONS: tuple[str, ...] = ("", "Read this carefully.", "Here are some facts.", "Keep these in mind:", "Notes:")
ACKNOWLEDGEMENTS: tuple[str, ...] = ("Reply with OK.", "Say OK when you have read it.", "Just answer OK for now.")
JOINERS: tuple[str, ...] = ("-", "-", " ", "_")

QUESTION_CHARACTERS = 110
FILLER_DENSITY = 1.35
"""Characters per token of running text, relative to facts with digits."""


@dataclass(frozen=True)
class Fact:
    """One ``relation(key) = value`` statement."""

    relation: str
    key: str
    value: str

    def phrase(self, template: str) -> str:
        """Fills a statement or question template."""
        return template.format(relation=self.relation, key=self.key, value=self.value)


def make_keys(source: Source, count: int) -> list[str]:
    """Returns distinct keys: mostly ``amber-fox``, where they suffice also single nouns, people, or ``fox-17``."""
    kind = source.rng.random()
    if kind < 0.08 and count <= 20 and source.split is Split.TRAIN:
        return source.rng.sample(words.NOUNS, count)
    if kind < 0.14 and count <= 10 and source.split is Split.TRAIN:
        return source.rng.sample(words.PEOPLE, count)
    if kind < 0.3:
        return source.distinct(count, lambda: f"{source.noun()}-{source.integer(1, 99)}")
    joiner = source.choice(JOINERS)
    return source.distinct(count, lambda: f"{source.adjective()}{joiner}{source.noun()}")


def make_facts(source: Source, count: int) -> list[Fact]:
    """Returns facts with distinct keys of this split, over one to three relations."""
    relations = source.rng.sample(list(RELATIONS), source.integer(1, 3)) if source.chance(0.5) else ["code"]
    facts = []
    for key in make_keys(source, count):
        relation = source.choice(relations)
        facts.append(Fact(relation, key, RELATIONS[relation](source)))
    return facts


def ask(source: Source, fact: Fact, prefix: str = "") -> list[Message]:
    """Returns a question about one fact and its answer: the bare value."""
    question = fact.phrase(source.choice(QUESTIONS))
    return [user(prefix + question), assistant(fact.value, f"I look up the {fact.relation} of {fact.key}.")]


def ask_many(source: Source, facts: list[Fact], prefix: str = "") -> list[Message]:
    """Returns one question about several facts, answered as ``key: value`` lines."""
    keys = ", ".join(fact.key for fact in facts)
    question = source.choice(("List the values for: {keys}.", "Give me the values of {keys}.", "Look up {keys}."))
    answer = "\n".join(f"{fact.key}: {fact.value}" for fact in facts)
    return [user(prefix + question.format(keys=keys)), assistant(answer, f"I look up {len(facts)} values.")]


def questions(source: Source, facts: list[Fact], characters: int, prefix: str) -> list[Message]:
    """Returns question turns that fill about ``characters``, the first one starting with ``prefix``."""
    messages: list[Message] = []
    while not messages or characters > 0:
        if len(facts) > 2 and source.chance(0.3):
            asked = source.rng.sample(facts, min(len(facts), source.integer(2, 8)))
            messages += ask_many(source, asked, prefix)
            characters -= 60 + 26 * len(asked)
        else:
            messages += ask(source, source.choice(facts), prefix)
            characters -= QUESTION_CHARACTERS
        prefix = ""
    return messages


def place(source: Source, body: str) -> tuple[str, list[Message], str]:
    """Decides where the facts stand: the system message, an acknowledged first turn, or before the first question.

    Returns (system text, leading messages, prefix of the first question).
    """
    introduction = source.choice(INTRODUCTIONS)
    body = f"{introduction}\n{body}" if introduction else body
    kind = source.rng.random()
    if kind < 0.2:
        return body, [], ""
    if kind < 0.45:
        text = f"{body}\n\n{source.choice(ACKNOWLEDGEMENTS)}"
        return "", [user(text), assistant("OK", "I only have to confirm.")], ""
    return "", [], f"{body}\n\n"


def key_value(source: Source, characters: int, single: bool = False) -> Exchange:
    """A list of facts that fills most of ``characters``, then questions; ``single`` asks exactly one."""
    statement = source.choice(STATEMENTS)
    share = 1.0 if single else source.choice((0.5, 0.6, 0.7, 0.8, 0.9))
    room = max(characters - QUESTION_CHARACTERS, 60) * share
    facts = make_facts(source, max(1, int(room / (len(statement) + 1))))
    separator = source.choice(("\n", "\n", " "))
    lines: list[str] = []
    kept: list[Fact] = []
    used = 0.0
    for fact in facts:
        line = fact.phrase(statement)
        used += len(line) + 1
        if used > room and kept:
            break
        lines.append(line)
        kept.append(fact)
    system, messages, prefix = place(source, separator.join(lines))
    budget = 0 if single else int(characters - used - QUESTION_CHARACTERS)
    messages = messages + questions(source, kept, budget, prefix)[: 2 if single else None]
    return Exchange("key-value", tuple(messages), system=system)


def filler_lines(source: Source, characters: int) -> list[str]:
    """Returns lines of running text, or of random words, of about ``characters`` in all."""
    lines: list[str] = []
    while characters > 0:
        if source.filler and source.chance(0.8):
            new = source.choice(source.filler).split("\n")
        else:
            new = [" ".join(source.choice(words.NOUNS) for _ in range(12)) + "." for _ in range(8)]
        for line in new:
            lines.append(line[:characters])
            characters -= len(line) + 1
            if characters <= 0:
                break
    return lines


def needle(source: Source, characters: int, single: bool = False) -> Exchange:
    """A few facts hidden in running text, then questions about them."""
    count = 1 if single and source.chance(0.5) else source.integer(1, 10)
    if count == 1 and source.chance(0.4):
        return lone(source, characters)
    facts = make_facts(source, count)
    statement = source.choice(STATEMENTS[:SENTENCES])
    asked = 1 if single else source.integer(1, 2 * len(facts))
    room = characters - asked * QUESTION_CHARACTERS - sum(len(fact.phrase(statement)) + 1 for fact in facts)
    lines = filler_lines(source, int(max(room, 0) * FILLER_DENSITY))
    for fact in facts:
        lines.insert(source.integer(0, len(lines)), fact.phrase(statement))
    system, messages, prefix = place(source, "\n".join(lines))
    if single:
        messages = messages + ask(source, source.choice(facts), prefix)
    else:
        messages = messages + questions(source, facts, (asked - 1) * QUESTION_CHARACTERS, prefix)
    return Exchange("needle", tuple(messages), system=system)


def lone(source: Source, characters: int) -> Exchange:
    """One fact without a name of its own (``The secret code is 4821.``) in running text, and the question about it."""
    relation = source.choice(list(RELATIONS)[:6])
    fact = Fact(relation, source.choice(LONE_KEYS), RELATIONS[relation](source))
    lines = filler_lines(source, int(max(characters - 2 * QUESTION_CHARACTERS, 0) * FILLER_DENSITY))
    lines.insert(source.integer(0, len(lines)), fact.phrase(source.choice(LONE_STATEMENTS)))
    system, messages, prefix = place(source, "\n".join(lines))
    question = fact.phrase(source.choice(LONE_QUESTIONS))
    reply = assistant(fact.value, f"I look up the {fact.key} {fact.relation}.")
    return Exchange("needle", (*messages, user(prefix + question), reply), system=system)
