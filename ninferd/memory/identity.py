"""What makes two prefixes the same: token ids, token types and the media behind placeholders (spec/memory §4).

Positions need no comparison of their own: they follow from the tokens and the media before them. How positions are
scaled, which model, which codec: constants of an engine, kept in its ``IdentityTag``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
TokenTypes = npt.NDArray[np.uint8]

TEXT: Final = 0
_COMPARED_AT_ONCE: Final = 8192  # tokens; a mismatch near the front ends the comparison early


@dataclass(frozen=True)
class IdentityTag:
    """Constants of an engine on which every cached byte depends; a tree serves exactly one."""

    model: str
    kv_codec: str
    draft: str = ""
    rope_factor: float = 1.0
    rope_original_context: int = 0


@dataclass(frozen=True)
class MediaItem:
    """One image or video in a prompt: what it is, and the tokens [start, end) that stand for it."""

    digest: bytes  # SHA-256 of the encoded bytes
    modality: str
    grid: tuple[int, int, int]  # patches: time, height, width
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Tokens:
    """A sequence of tokens with everything that decides equality."""

    ids: TokenIds  # int32 [n]
    types: TokenTypes  # uint8 [n]; TEXT or a class of placeholder
    media: tuple[MediaItem, ...] = ()  # by start

    @classmethod
    def of_text(cls, ids: npt.ArrayLike) -> Tokens:
        """Tokens without media."""
        array = np.asarray(ids, np.int32)
        return cls(array, np.zeros(len(array), np.uint8))

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int) -> Tokens:
        """Tokens [start, end) with the media that touch them; positions of media stay those of the whole."""
        inside = tuple(item for item in self.media if item.start < end and item.end > start)
        return Tokens(self.ids[start:end].copy(), self.types[start:end].copy(), inside)

    def common_prefix(self, offset: int, other: Tokens) -> int:
        """How many tokens of ``other``, a part that began at ``offset``, equal these; media included."""
        count = min(len(self) - offset, len(other))
        equal = _equal_prefix(self.ids[offset : offset + count], other.ids[:count])
        equal = _equal_prefix(self.types[offset : offset + equal], other.types[:equal])
        if not self.media and not other.media:
            return equal
        mine = [item for item in self.media if item.start < offset + equal and item.end > offset]
        theirs = [item for item in other.media if item.start < offset + equal]
        for ours, their in zip(mine, theirs, strict=False):
            if ours != their:
                return max(0, min(equal, min(ours.start, their.start) - offset))
        for extra in (*mine[len(theirs) :], *theirs[len(mine) :]):
            return max(0, min(equal, extra.start - offset))
        return equal

    def splits_media(self, position: int) -> bool:
        """Whether ``position`` lies strictly inside an item: nothing can resume there."""
        return any(item.start < position < item.end for item in self.media)


@dataclass
class Ledger:
    """Tokens of a running sequence: its prompt, then whatever it generates. Append only, amortised."""

    tokens: Tokens
    _ids: TokenIds = field(init=False)
    _length: int = field(init=False)

    def __post_init__(self) -> None:
        self._length = len(self.tokens)
        self._ids = self.tokens.ids

    def __len__(self) -> int:
        return self._length

    def append(self, token: int) -> None:
        """One generated token."""
        if self._length == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(max(64, len(self._ids) // 2), np.int32)))
        self._ids[self._length] = token
        self._length += 1

    def upto(self, end: int) -> Tokens:
        """The first ``end`` tokens; generated ones are text. A view while it lasts."""
        types = self.tokens.types
        if end > len(types):
            types = np.concatenate((types, np.zeros(end - len(types), np.uint8)))
        return Tokens(self._ids[:end], types[:end], self.tokens.media)


def _equal_prefix(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> int:
    """Length of the common prefix of two arrays of one length."""
    for start in range(0, len(a), _COMPARED_AT_ONCE):
        differs = a[start : start + _COMPARED_AT_ONCE] != b[start : start + _COMPARED_AT_ONCE]
        if differs.any():
            return start + int(differs.argmax())
    return len(a)
