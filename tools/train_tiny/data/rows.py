"""Turns conversations into rows of token ids; bit 15 of each id says that the token has to be predicted."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.train_tiny.data.base import Source, Split
from tools.train_tiny.data.mixture import TEXT, Stage, converse, draw
from tools.train_tiny.data.render import Segment, segments
from tools.train_tiny.data.text import running_text
from tools.train_tiny.special import END_OF_TEXT

LEARNED = 1 << 15
Row = NDArray[np.uint16]


@dataclass(frozen=True)
class Reply:
    """Where one learned piece stands in its row: tokens ``[start, end)``, and the family it counts for."""

    family: str
    start: int
    end: int


def encode(tokenizer: Tokenizer, pieces: list[Segment]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Returns (ids with the learned bit, (turn, start, end) of each learned piece)."""
    ids: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for piece, encoding in zip(pieces, tokenizer.encode_batch([piece.text for piece in pieces]), strict=True):
        start = len(ids)
        if piece.turn >= 0:
            ids += [number | LEARNED for number in encoding.ids]
            spans.append((piece.turn, start, len(ids)))
        else:
            ids += encoding.ids
    return ids, spans


class RowMaker:
    """Makes rows of a given length that are filled well, learning the characters per token of each kind as it goes."""

    def __init__(self, tokenizer: Tokenizer, source: Source) -> None:
        """``source`` decides the split and the seed."""
        self.tokenizer, self.source = tokenizer, source
        self._ratio: dict[tuple[bool, int], float] = {}

    def row(self, length: int, stage: Stage) -> tuple[Row, list[Reply]]:
        """Returns one row of ``length`` ids (a single conversation or text from position 0, padded) and its replies."""
        source = self.source
        source.vocabulary = stage.vocabulary
        while True:
            text = length <= 2048 and draw(source, stage.families) == TEXT and bool(source.filler)
            kind = (text, length)
            ratio = self._ratio.get(kind, 2.6)
            characters = int(length * ratio * (1.0 if length > 512 else source.choice((0.6, 1.0))))
            if text:
                pieces, families = running_text(source, characters), None
            else:
                conversation = converse(source, stage, characters)
                pieces, families = segments(conversation), conversation.families
            ids, spans = encode(self.tokenizer, pieces)
            if len(ids) > length:
                self._ratio[kind] = ratio * 0.985
                if not text:
                    continue
                ids = ids[:length]
            else:
                self._ratio[kind] = ratio * 1.004
            row = np.full(length, END_OF_TEXT, np.uint16)
            row[: len(ids)] = ids
            replies = [
                Reply(families[turn] if families else TEXT, start, min(end, length))
                for turn, start, end in spans
                if start < length
            ]
            return row, replies

    def batch(self, tokens: int, length: int, stage: Stage) -> tuple[NDArray[np.uint16], list[list[Reply]]]:
        """Returns ``[tokens / length, length]`` ids and the replies of each row."""
        rows, replies = zip(*(self.row(length, stage) for _ in range(tokens // length)), strict=True)
        return np.stack(rows), list(replies)


def make_source(seed: int, split: Split, filler: list[str]) -> Source:
    """Returns the seeded source of a split; running text is divided between the splits too (every tenth document)."""
    share = [text for number, text in enumerate(filler) if (number % 10 == 0) == (split is Split.HELD_OUT)]
    return Source(random.Random(f"{split.value}-{seed}"), split, filler=share)
