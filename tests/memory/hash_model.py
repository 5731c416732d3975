"""A device whose bytes are hashes: every stale page, wrong tail, wrong state or early read changes the output.

The keys and values of a token are a hash of it and of its position; the recurrent state is a rolling hash of all
tokens before; the next token follows from both. Transfers take effect when they land, and a restore leaves garbage at
its destination until then. ``cold_tokens`` computes the same outputs without any memory system.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninferd.memory.copies import Landed, Transfer
from ninferd.memory.identity import Tokens

Words = npt.NDArray[np.uint64]

PAGE_TOKENS = 64
VOCABULARY = 997
_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_MASK = (1 << 64) - 1
_GARBAGE = 0xDEADBEEF


def inputs(tokens: Tokens) -> Words:
    """What the model is fed per position: the token, or the medium behind its placeholder."""
    fed = tokens.ids.astype(np.uint64) + np.uint64(1)
    for item in tokens.media:
        mark = int.from_bytes(item.digest[:4].ljust(4, b"\0"), "little") + 1
        fed[item.start : item.end] += np.uint64(mark * int(_C) & _MASK)
    return fed


def key_values(fed: Words, start: int) -> Words:
    """Cached words of the tokens from position ``start`` on."""
    positions = np.arange(start, start + len(fed), dtype=np.uint64)
    words: Words = fed * _A ^ (positions + np.uint64(1)) * _B
    return words


def advance_state(state: int, fed: Words) -> int:
    """The recurrent state after more tokens."""
    for word in fed.tolist():
        state = (state * 0x100000001B3 + word) & _MASK
    return state


def next_token(state: int, cached: Words) -> int:
    """The token that follows ``cached`` positions with this state."""
    weights = np.arange(len(cached), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    attention = int((cached * weights * _C).sum(dtype=np.uint64))
    mixed = ((state ^ attention) * 0x2545F4914F6CDD1D) & _MASK
    return (mixed >> 33) % VOCABULARY


def cold_tokens(prompt: Tokens, count: int) -> list[int]:
    """The outputs of a run that reuses nothing."""
    fed = inputs(prompt)
    state, cached = advance_state(0, fed), key_values(fed, 0)
    made: list[int] = []
    for _ in range(count):
        made.append(next_token(state, cached))
        word = np.array([made[-1] + 1], np.uint64)
        state, cached = advance_state(state, word), np.concatenate((cached, key_values(word, len(cached))))
    return made


@dataclass
class HashDevice:
    """Device pages and slots, host slabs, and transfers under way. Implements ``Copies``."""

    pages: int
    slots: int
    hold: bool = False  # transfers land only when released by the test
    refuse: int = 0  # this many transfers cannot even begin
    fail: int = 0  # this many transfers fail on the way
    kv: Words = field(init=False)
    state: list[int] = field(init=False)
    host: dict[int, Words | tuple[int, int]] = field(default_factory=dict)  # a page, or (part, value) of a state
    damaged: set[int] = field(default_factory=set)
    log: list[Transfer] = field(default_factory=list)
    _flying: list[tuple[int, Transfer]] = field(default_factory=list)
    _read: dict[int, list[int]] = field(default_factory=dict)  # states that were read when their copy began
    _released: int = 0

    def __post_init__(self) -> None:
        self.kv = np.full((self.pages, PAGE_TOKENS), _GARBAGE, np.uint64)
        self.state = [_GARBAGE] * self.slots

    @property
    def flying(self) -> int:
        """Transfers under way."""
        return len(self._flying)

    def release(self, count: int = 1) -> None:
        """Let the oldest ``count`` held transfers land at the next poll."""
        self._released += count

    def start(self, transfer: Transfer) -> int:
        if self.refuse:
            self.refuse -= 1
            raise MemoryError("no room for the copy list")
        assert len(transfer.pages) == len(transfer.slabs)
        self.log.append(transfer)
        self._flying.append((len(self.log), transfer))
        if transfer.holds_compute:
            self._read[len(self.log)] = [self.state[copy.slot] for copy in transfer.states]
        if transfer.direction == "h2d":
            self.kv[transfer.pages] = _GARBAGE
            for copy in transfer.states:
                self.state[copy.slot] = _GARBAGE
        return len(self.log)

    def landed(self) -> list[Landed]:
        count = len(self._flying) if not self.hold else min(self._released, len(self._flying))
        self._released = max(0, self._released - count)
        ended, self._flying = self._flying[:count], self._flying[count:]
        return [self._land(ticket, transfer) for ticket, transfer in ended]

    def copy_page(self, source: int, destination: int) -> None:
        self.kv[destination] = self.kv[source]

    def copy_state(self, source: int, destination: int) -> None:
        self.state[destination] = self.state[source]

    def reset_state(self, slot: int) -> None:
        self.state[slot] = 0

    def _land(self, ticket: int, transfer: Transfer) -> Landed:
        states = self._read.pop(ticket, None) or [self.state[copy.slot] for copy in transfer.states]
        if self.fail:
            self.fail -= 1
            return Landed(ticket, 0.0, failed=True)
        if transfer.direction == "d2h":
            for page, slab in zip(transfer.pages.tolist(), transfer.slabs.tolist(), strict=True):
                self.host[slab] = self.kv[page].copy()
            for copy, value in zip(transfer.states, states, strict=True):
                for part, slab in enumerate(copy.slabs.tolist()):
                    self.host[slab] = (part, value)
            self.damaged -= {*transfer.slabs.tolist(), *(s for c in transfer.states for s in c.slabs.tolist())}
            return Landed(ticket, 0.25)
        bad = set[int]()
        for page, slab in zip(transfer.pages.tolist(), transfer.slabs.tolist(), strict=True):
            content = self.host[slab]
            assert isinstance(content, np.ndarray)
            bad |= {slab} & self.damaged
            self.kv[page] = _GARBAGE if slab in self.damaged else content
        for copy in transfer.states:
            parts = [self.host[slab] for slab in copy.slabs.tolist()]
            whole = [part for part in parts if isinstance(part, tuple)]
            assert [part for part, _ in whole] == list(range(len(parts)))
            values = {value for _, value in whole}
            self.state[copy.slot] = values.pop() if len(values) == 1 else _GARBAGE
            bad |= set(copy.slabs.tolist()) & self.damaged
        return Landed(ticket, 0.5, bad_slabs=frozenset(bad))
