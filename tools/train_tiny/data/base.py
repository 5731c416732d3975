"""What every family is made of: seeded sources of names, and exchanges (a request with everything that answers it)."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tools.train_tiny.data import words

T = TypeVar("T")

Message = dict[str, Any]
"""A chat message in the OpenAI form; assistant messages always carry ``reasoning_content``."""

Tool = dict[str, Any]
"""A function tool in the OpenAI form."""

HELD_OUT_SHARE = 10


class Split(Enum):
    """Which half of a family's name space may be used."""

    TRAIN = "train"
    HELD_OUT = "held-out"


def is_held_out(text: str) -> bool:
    """A tenth of all names, chosen by CRC-32, never occurs in training."""
    return zlib.crc32(text.encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Exchange:
    """One request with its answers; ``messages`` starts with a user turn and ends with an assistant turn.

    ``family`` is the evaluation row of its replies, except that ``call_family`` (if any) is that of the first one.
    """

    family: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    system: str = ""
    call_family: str = ""


@dataclass
class Source:
    """Random names and values of one split.

    ``vocabulary`` limits how many adjectives and nouns are used (a small alphabet lets induction heads form first);
    ``filler`` holds running text for the recall families.
    """

    rng: random.Random
    split: Split = Split.TRAIN
    vocabulary: int = 1000
    filler: Sequence[str] = field(default=(), repr=False)

    def choice(self, options: Sequence[T]) -> T:
        """Returns one of ``options``."""
        return options[int(self.rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """Returns true with the given probability."""
        return self.rng.random() < probability

    def integer(self, low: int, high: int) -> int:
        """Returns an integer of the closed interval."""
        return low + int(self.rng.random() * (high - low + 1))

    def of_split(self, make: Callable[[], str]) -> str:
        """Draws from ``make`` until the text belongs to this split."""
        while True:
            text = make()
            if is_held_out(text) == (self.split is Split.HELD_OUT):
                return text

    def adjective(self) -> str:
        """Returns an adjective of the current vocabulary."""
        return self.choice(words.ADJECTIVES[: self.vocabulary])

    def noun(self) -> str:
        """Returns a noun of the current vocabulary."""
        return self.choice(words.NOUNS[: self.vocabulary])

    def digits(self, count: int) -> str:
        """Returns ``count`` decimal digits without a leading zero."""
        return str(self.integer(10 ** (count - 1), 10**count - 1))

    def distinct(self, count: int, make: Callable[[], str]) -> list[str]:
        """Returns up to ``count`` distinct texts of this split drawn from ``make``."""
        found: dict[str, None] = {}
        for _ in range(count * 3):
            found[self.of_split(make)] = None
            if len(found) == count:
                break
        return list(found)


def user(content: str) -> Message:
    """Returns a user turn."""
    return {"role": "user", "content": content}


def assistant(content: str, reasoning: str, calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> Message:
    """Returns an assistant turn; ``calls`` are (function name, arguments) pairs."""
    message: Message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return message


def tool(content: str) -> Message:
    """Returns a tool result turn."""
    return {"role": "tool", "content": content}


def join(items: Sequence[str], last: str = "and") -> str:
    """Joins as ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
