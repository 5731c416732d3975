"""Running text for language modelling."""

from tools.train_tiny.data.base import Source
from tools.train_tiny.data.render import Segment


def running_text(source: Source, characters: int) -> list[Segment]:
    """Returns one or more documents, each followed by the end-of-text token, all of it learned."""
    pieces: list[Segment] = []
    while characters > 0:
        document = source.choice(source.filler)
        start = source.integer(0, max(0, len(document) - characters)) if len(document) > characters else 0
        text = document[start : start + characters]
        pieces.append(Segment(text + "<|endoftext|>", len(pieces)))
        characters -= len(text) + 3
    return pieces
