"""Sample conversations for training the tokenizer."""

import random
from collections.abc import Iterator

from tools.train_tiny.data import facts, words
from tools.train_tiny.data.base import Source
from tools.train_tiny.data.mixture import STAGES, converse
from tools.train_tiny.data.render import segments

SAMPLES = 1200


def tokenizer_samples(seed: int) -> Iterator[str]:
    """Yields rendered conversations of every family, then all names and fixed answers once more."""
    source = Source(random.Random(seed))
    for _ in range(SAMPLES):
        yield "".join(piece.text for piece in segments(converse(source, STAGES[-1], source.choice((800, 1600, 3200)))))
    for questions, answer in facts.FIXED:
        yield "\n".join((*questions, answer))
    for name in (*words.ADJECTIVES, *words.NOUNS, *words.VERBS, *words.OBJECTS, *words.PARAMETERS):
        yield f"{name} {name}-{name}_{name}"
