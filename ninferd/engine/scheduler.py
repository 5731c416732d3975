"""Which request is admitted, and which unit of work runs next (spec/memory §9). Pure decisions, no tensors.

One prefill chunk and one decode round alternate while both exist, so a running stream waits for at most one chunk
and a prompt for at most one round. All sequences that can decode, decode together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from ninferd.engine.sequence import Sequence
from ninferd.memory.pages import PagePool


@dataclass(frozen=True)
class PrefillChunk:
    """Prompt tokens [start, end) of one sequence. Boundaries depend on that prompt alone."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt is complete after it."""
        return self.end == len(self.sequence.prompt)


@dataclass(frozen=True)
class DecodeRound:
    """One token for every sequence that can decode."""

    sequences: tuple[Sequence, ...]


@dataclass(frozen=True)
class _Blockade:
    """A queue head that does not fit, and the sequences that ran when it became so (its donors)."""

    head: Sequence
    donors: frozenset[Sequence]


class Scheduler:
    """FIFO of waiting sequences and the running ones, prefilling in order of admission."""

    def __init__(self, pool: PagePool, lanes: int, prefill_chunk: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self._pool = pool
        self._lanes = lanes
        self._prefill_chunk = prefill_chunk
        self._previous_was_decode = False
        self._changed = False  # since the last admission attempt that found nothing
        self._blockade: _Blockade | None = None

    @property
    def active(self) -> list[Sequence]:
        """Admitted sequences."""
        return self.prefilling + self.decoding

    def enqueue(self, sequence: Sequence) -> None:
        """Append to the queue."""
        self.waiting.append(sequence)
        self._changed = True

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        for members in (self.waiting, self.prefilling, self.decoding):
            if sequence in members:
                members.remove(sequence)
        self._changed = True

    def take_expired(self, now_s: float) -> list[Sequence]:
        """Remove and return the waiting sequences whose deadline has passed."""
        expired = [s for s in self.waiting if s.deadline_s is not None and s.deadline_s <= now_s]
        for sequence in expired:
            self.remove(sequence)
        return expired

    def admit(self) -> Sequence | None:
        """At most one sequence, moved from waiting to prefilling; the caller reserves its entitlement at once.

        The head of the queue if it fits; else the first one behind it that provably cannot delay the head.
        """
        if not self.waiting or not self._changed or (self.decoding and not self._previous_was_decode):
            return None
        head = self.waiting[0]
        if self._fits(head):
            self._blockade = None
            return self._start(head)
        if self._blockade is None or self._blockade.head is not head:
            self._blockade = _Blockade(head, frozenset(self.active))
        for candidate in islice(self.waiting, 1, None):
            if self._fits(candidate) and self._cannot_delay(self._blockade, candidate):
                return self._start(candidate)
        self._changed = False
        return None

    def next_unit(self) -> PrefillChunk | DecodeRound | None:
        """The unit to run now; None when nothing is admitted."""
        if self.decoding and not (self.prefilling and self._previous_was_decode):
            self._previous_was_decode = True
            return DecodeRound(tuple(self.decoding))
        self._previous_was_decode = False
        if not self.prefilling:
            return None
        sequence = self.prefilling[0]
        end = min(sequence.processed + self._prefill_chunk, len(sequence.prompt))
        return PrefillChunk(sequence, sequence.processed, end)

    def start_decoding(self, sequence: Sequence) -> None:
        """Its prompt is processed and its first token sampled."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)

    def _start(self, sequence: Sequence) -> Sequence:
        self.waiting.remove(sequence)
        self.prefilling.append(sequence)
        return sequence

    def _fits(self, sequence: Sequence) -> bool:
        lanes_used = len(self.prefilling) + len(self.decoding)
        return lanes_used < self._lanes and sequence.entitlement.pages <= self._pool.available

    def _cannot_delay(self, blockade: _Blockade, candidate: Sequence) -> bool:
        """Once the donors are gone, do the head, all who passed it, and the candidate fit together?

        Admitted sequences never grow, so the proof needs no estimate of time. A lane is certain: whoever passes the
        head does so while a donor still holds one.
        """
        borrowers = [sequence for sequence in self.active if sequence not in blockade.donors]
        pages = sum(s.entitlement.pages for s in (blockade.head, candidate, *borrowers))
        return pages <= self._pool.capacity
