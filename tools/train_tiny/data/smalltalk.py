"""Small talk, everyday facts, things the user said earlier, and little tasks such as counting."""

from tools.train_tiny.data import facts, words
from tools.train_tiny.data.base import Exchange, Message, Source, Split, assistant, is_held_out, join, user

EASY = "This is a simple question."
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _phrase(source: Source, templates: tuple[str, ...], subject: str) -> str:
    """Fills a template; the first one is always trained, one in ten of the others only appears in evaluation."""
    trained = [text for number, text in enumerate(templates) if number == 0 or not is_held_out(text + subject)]
    others = [text for text in templates if text not in trained]
    options = trained if source.split is Split.TRAIN or not others else others
    return source.choice(options).format(subject)


def _table(source: Source) -> list[Message]:
    table = facts.TABLES[source.choice(("capitals", "capitals", "capitals", "colors", "opposites", "sounds"))]
    subject = source.choice(list(table.entries))
    return [user(_phrase(source, table.questions, subject)), assistant(table.reply(subject), EASY)]


def _fixed(source: Source) -> list[Message]:
    questions, answer = source.choice(facts.FIXED[: facts.CHAT] if source.chance(0.5) else facts.FIXED)
    return [user(source.choice(questions)), assistant(answer, EASY)]


def _introduction(source: Source) -> list[Message]:
    """The user says a name, a city and a colour, and asks for one of them."""
    name, city, color = (
        source.choice(words.PEOPLE),
        source.choice(words.CITIES),
        source.choice(("red", "blue", "green", "black")),
    )
    statement = source.choice(("My name is {0}.", "I am {0}.", "Hi, I'm {0}.", "Hello, my name is {0}."))
    text = statement.format(name) + source.choice(
        (f" I live in {city} and my favorite color is {color}.", f" I live in {city}. I like {color}.")
    )
    messages = [user(text), assistant(f"Nice to meet you, {name}!", "The user says a name.")]
    asked = (
        (("What is my name?", "Who am I?", "Do you know my name?"), f"Your name is {name}."),
        (("Where do I live?", "Which city do I live in?"), f"You live in {city}."),
        (("What is my favorite color?", "Which color do I like?"), f"Your favorite color is {color}."),
    )
    for questions, answer in source.rng.sample(asked, source.integer(1, 3)):
        messages += [user(source.choice(questions)), assistant(answer, "The user told me.")]
    return messages


def _count(source: Source) -> tuple[str, str]:
    first = 1 if source.chance(0.6) else source.integer(2, 60)
    last = first + (source.integer(2, 99) if source.chance(0.2) else source.integer(2, 30))
    prompt = source.choice(("Count from {0} to {1}.", "Count from {0} to {1}", "Please count from {0} up to {1}."))
    return prompt.format(first, last), ", ".join(str(number) for number in range(first, last + 1))


def _little_task(source: Source) -> list[Message]:
    """Counting, comparing, picking and sequences."""
    kind = source.integer(0, 6)
    items = source.rng.sample(words.NOUNS, source.integer(3, 6))
    listed = ", ".join(items)
    if kind == 0:
        question, answer = _count(source)
    elif kind == 1:
        a, b = source.rng.sample(range(1, 1000), 2)
        question, answer = f"Which number is larger, {a} or {b}?", str(max(a, b))
    elif kind == 2:
        place, number = source.choice((("first", 0), ("second", 1), ("third", 2), ("last", -1)))
        question, answer = f"Which word is {place}: {listed}?", items[number]
    elif kind == 3:
        question, answer = f"How many words are in this list: {listed}?", str(len(items))
    elif kind == 4:
        names = source.choice((facts.DAYS, facts.MONTHS))
        number, (word, step) = source.integer(0, len(names) - 1), source.choice((("after", 1), ("before", -1)))
        question, answer = f"What comes {word} {names[number]}?", names[(number + step) % len(names)]
    elif kind == 5:
        number = source.integer(0, 24)
        question, answer = f"Which letter comes after {LETTERS[number]}?", LETTERS[number + 1]
    else:
        question, answer = f"Put these in one sentence: {listed}", f"I see {join([f'the {item}' for item in items])}."
    return [user(question), assistant(answer, "I solve it directly.")]


def smalltalk(source: Source) -> Exchange:
    """One short piece of conversation."""
    kind = source.rng.random()
    if kind < 0.35:
        return Exchange("small talk", tuple(_table(source)))
    if kind < 0.7:
        return Exchange("small talk", tuple(_fixed(source)))
    if kind < 0.8:
        return Exchange("small talk", tuple(_introduction(source)))
    return Exchange("little tasks", tuple(_little_task(source)))
