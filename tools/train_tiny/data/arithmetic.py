"""Short arithmetic, worked digit by digit in the reasoning block."""

from tools.train_tiny.data.base import Exchange, Source, assistant, user

PROMPTS: tuple[str, ...] = (
    "What is {a} {sign} {b}?",
    "Compute {a} {sign} {b}.",
    "{a} {sign} {b} = ?",
    "Calculate {a} {sign} {b}.",
    "How much is {a} {word} {b}?",
    "What's {a} {word} {b}?",
)
SIGN_WORDS: dict[str, str] = {"+": "plus", "-": "minus", "*": "times"}


def addition_steps(a: int, b: int) -> list[str]:
    """Column addition from the last digit: ``7 + 5 = 12, carry 1``."""
    lines, carry = [], 0
    for x, y in _columns(a, b):
        terms = f"{x} + {y} + 1" if carry else f"{x} + {y}"
        total = x + y + carry
        carry = total // 10
        lines.append(f"{terms} = {total}" + (", carry 1" if carry else ""))
    return lines


def subtraction_steps(a: int, b: int) -> list[str]:
    """Column subtraction of ``b <= a``: ``2 - 7 + 10 = 5, borrow 1``."""
    lines, borrow = [], 0
    for x, y in _columns(a, b):
        difference = x - y - borrow
        terms = f"{x} - {y}" + (" - 1" if borrow else "")
        borrow = int(difference < 0)
        lines.append(f"{terms} + 10 = {difference + 10}, borrow 1" if borrow else f"{terms} = {difference}")
    return lines


def multiplication_steps(a: int, b: int) -> list[str]:
    """Column multiplication by a one-digit ``b``: ``4 * 6 = 24, carry 2``."""
    lines, carry = [], 0
    for digit in reversed(str(a)):
        terms = f"{digit} * {b}" + (f" + {carry}" if carry else "")
        total = int(digit) * b + carry
        carry = total // 10
        lines.append(f"{terms} = {total}" + (f", carry {carry}" if carry else ""))
    return lines


def _columns(a: int, b: int) -> list[tuple[int, int]]:
    width = max(len(str(a)), len(str(b)))
    left, right = str(a).zfill(width), str(b).zfill(width)
    return [(int(x), int(y)) for x, y in zip(reversed(left), reversed(right), strict=True)]


def _operands(source: Source, hard: bool) -> tuple[int, str, int]:
    sign = source.choice(("+", "+", "-", "-", "*"))
    if sign == "*":
        return source.integer(2, 99 if hard else 10), sign, source.integer(2, 9)
    a = source.integer(1, 10 ** source.integer(1, 3 if hard else 2) - 1)
    b = source.integer(1, 10 ** source.integer(1, 3 if hard else 2) - 1)
    return (max(a, b), sign, min(a, b)) if sign == "-" else (a, sign, b)


def arithmetic(source: Source, thinking: bool) -> Exchange:
    """One sum, difference or product; numbers stay small when there is no reasoning block to work in."""
    a, sign, b = 0, "+", 0

    def draw() -> str:
        nonlocal a, sign, b
        a, sign, b = _operands(source, thinking)
        return f"{a} {sign} {b}"

    expression = source.of_split(draw)
    if sign == "+":
        result, lines = a + b, addition_steps(a, b)
    elif sign == "-":
        result, lines = a - b, subtraction_steps(a, b)
    else:
        result, lines = a * b, multiplication_steps(a, b)
    prompt = source.choice(PROMPTS).format(a=a, b=b, sign=sign, word=SIGN_WORDS[sign])
    reasoning = "\n".join([expression, *lines])
    return Exchange("arithmetic", (user(prompt), assistant(str(result), reasoning)))
