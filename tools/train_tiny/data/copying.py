"""Copying: code in a fence, plain phrases, word and number lists, all to be repeated exactly."""

from tools.train_tiny.data import words
from tools.train_tiny.data.base import Exchange, Source, assistant, user

FENCED: tuple[str, ...] = (
    "Repeat this exactly:\n{text}",
    "Copy this code exactly:\n{text}",
    "Return the following text unchanged.\n{text}",
    "{text}\nRepeat the block above exactly.",
)
PLAIN: tuple[str, ...] = (
    "Say: {text}",
    "Repeat: {text}",
    "Repeat after me: {text}",
    "Reply with only: {text}",
    "Echo: {text}",
)
LANGUAGES: tuple[str, ...] = ("python", "", "json", "js")
OPERATORS: tuple[str, ...] = ("+", "-", "*", "//", "%", "==", "<", "and", "or")


def _name(source: Source) -> str:
    parts = [source.choice(words.VERBS), source.choice(words.OBJECTS), source.choice(words.PARAMETERS)]
    return "_".join(parts[: source.integer(1, 3)])


def _atom(source: Source) -> str:
    kind = source.integer(0, 4)
    if kind == 0:
        return str(source.integer(0, 9999))
    if kind == 1:
        return f'"{source.adjective()} {source.noun()}"'
    if kind == 2:
        return f"{_name(source)}({_name(source)}, {source.integer(0, 99)})"
    return _name(source)


def _code_line(source: Source) -> str:
    kind = source.integer(0, 6)
    if kind == 0:
        return f"{_name(source)} = {_atom(source)}"
    if kind == 1:
        return f"if {_name(source)} {source.choice(OPERATORS)} {_atom(source)}:\n    return {_atom(source)}"
    if kind == 2:
        return f"for {_name(source)} in {_atom(source)}:\n    print({_atom(source)})"
    if kind == 3:
        head = f"def {_name(source)}({_name(source)}, {_name(source)}={source.integer(0, 99)}):"
        return f"{head}\n    return {_atom(source)}"
    if kind == 4:
        return f'{{"{_name(source)}": {source.integer(0, 999)}, "{_name(source)}": "{source.noun()}"}}'
    return f"{_name(source)}.{_name(source)}({_atom(source)})"


def code_text(source: Source, characters: int) -> str:
    """Returns synthetic code, or a piece of the running text, of at most about ``characters``."""
    if source.filler and source.chance(0.4):
        document = source.choice(source.filler)
        start = source.integer(0, max(0, len(document) - characters))
        piece = document[start : start + characters].strip()
        if piece and "```" not in piece:
            return piece
    lines: list[str] = []
    while characters > 0:
        lines.append(_code_line(source))
        characters -= len(lines[-1]) + 1
    return "\n".join(lines)


def phrase_text(source: Source, count: int) -> str:
    """Returns a short list of random words, numbers, or words of other scripts."""
    kind = source.integer(0, 3)
    if kind == 3:
        return " ".join(source.choice((source.choice(words.FOREIGN), source.noun())) for _ in range(count))
    if kind == 0:
        return ", ".join(source.digits(source.integer(1, 5)) for _ in range(count))
    if kind == 1:
        return " ".join(f"{source.adjective()} {source.noun()}" for _ in range(count))
    return "-".join(source.noun() for _ in range(count))


def copying(source: Source, characters: int) -> Exchange:
    """One text to repeat; fenced texts take about ``characters`` in the request and as much in the answer."""
    if characters < 160 or source.chance(0.3):
        text = source.of_split(lambda: phrase_text(source, source.integer(1, 1 + max(1, min(characters // 60, 16)))))
        prompt = source.choice(PLAIN).format(text=text)
        return Exchange("copy", (user(prompt), assistant(text, "I repeat the text.")))
    body = source.of_split(lambda: code_text(source, int((characters - 80) / 2 * source.choice((0.4, 0.7, 1.0)))))
    fence = f"```{source.choice(LANGUAGES)}\n{body}\n```"
    return Exchange(
        "copy", (user(source.choice(FENCED).format(text=fence)), assistant(fence, "I copy the block exactly."))
    )
