"""Physical page pool: who may take a page, which pages are free. Bookkeeping only; the bytes are elsewhere."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninferd.memory.errors import InvariantError

PageIds = npt.NDArray[np.int32]


@dataclass
class PageReservation:
    """Units promised to one owner and not yet turned into pages. Made by ``PagePool.reserve`` only."""

    remaining: int


@dataclass(frozen=True)
class PageCensus:
    """Where the pages of a pool are."""

    capacity: int
    allocated: int
    reserved: int
    free_runs: int
    largest_free_run: int

    @property
    def available(self) -> int:
        """Pages that can still be reserved."""
        return self.capacity - self.allocated - self.reserved


class PagePool:
    """Pages 0 .. capacity - 1: free (kept as runs), or allocated; free ones may be promised by reservations.

    Invariants: free + allocated = capacity; reserved <= free. A page's generation grows when it is freed, so a
    stored (id, generation) tells whether it is still the same tenant's.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a page pool needs at least one page, got {capacity}")
        self.capacity = capacity
        self.allocated = 0
        self.reserved = 0
        self.generations: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._begins = [0]  # free runs [begin, end), sorted, disjoint and not adjacent
        self._ends = [capacity]
        self._is_free = np.ones(capacity, np.bool_)

    @property
    def available(self) -> int:
        """Pages that can still be reserved."""
        return self.capacity - self.allocated - self.reserved

    def reserve(self, pages: int) -> PageReservation | None:
        """Promise ``pages`` units, or None if fewer are available."""
        if pages < 0:
            raise ValueError(f"cannot reserve {pages} pages")
        if pages > self.available:
            return None
        self.reserved += pages
        return PageReservation(pages)

    def cancel(self, reservation: PageReservation) -> None:
        """Give back what is left of a reservation."""
        self.reserved -= reservation.remaining
        reservation.remaining = 0

    def materialize(self, reservation: PageReservation, pages: int, after: int | None = None) -> PageIds:
        """Turn reserved units into pages, int32 [pages].

        Prefers the run that continues page ``after`` (copies coalesce), else the smallest run that fits, else
        several runs, largest first. More than was reserved is a logic error of the caller, never a shortage.
        """
        if pages > reservation.remaining:
            raise InvariantError(f"{pages} pages wanted, {reservation.remaining} left of the reservation")
        taken = np.empty(pages, np.int32)
        filled = 0
        while filled < pages:
            run = self._choose_run(pages - filled, after)
            begin = self._begins[run]
            count = min(pages - filled, self._ends[run] - begin)
            taken[filled : filled + count] = np.arange(begin, begin + count, dtype=np.int32)
            self._take_front(run, count)
            filled += count
            after = begin + count - 1
        self._is_free[taken] = False
        reservation.remaining -= pages
        self.reserved -= pages
        self.allocated += pages
        return taken

    def release(self, pages: PageIds, to: PageReservation | None = None) -> None:
        """Free pages; with ``to`` the units go back to that reservation instead of becoming available."""
        if len(np.unique(pages)) != len(pages) or self._is_free[pages].any():
            raise InvariantError(f"pages released twice: {pages.tolist()}")
        for begin, end in _runs(np.sort(pages)):
            self._insert_run(begin, end)
        self._is_free[pages] = True
        self.generations[pages] += 1
        self.allocated -= len(pages)
        if to is not None:
            to.remaining += len(pages)
            self.reserved += len(pages)

    def census(self) -> PageCensus:
        """Counts of this moment."""
        largest = max((e - b for b, e in zip(self._begins, self._ends, strict=True)), default=0)
        return PageCensus(self.capacity, self.allocated, self.reserved, len(self._begins), largest)

    def check(self) -> None:
        """Raise InvariantError if the counts, the runs and the free map disagree."""
        free = np.zeros(self.capacity, np.bool_)
        last_end = -1
        for begin, end in zip(self._begins, self._ends, strict=True):
            if not last_end < begin < end <= self.capacity:
                raise InvariantError(f"free run [{begin}, {end}) after {last_end} in a pool of {self.capacity}")
            free[begin:end] = True
            last_end = end
        if not np.array_equal(free, self._is_free):
            raise InvariantError("free runs and free map differ")
        if int(free.sum()) + self.allocated != self.capacity:
            raise InvariantError(f"{int(free.sum())} free + {self.allocated} allocated is not {self.capacity}")
        if not 0 <= self.reserved <= self.capacity - self.allocated:
            raise InvariantError(f"{self.reserved} reserved of {self.capacity - self.allocated} free pages")

    def _choose_run(self, wanted: int, after: int | None) -> int:
        """Index of the free run to take from next."""
        if after is not None:
            run = bisect_left(self._begins, after + 1)
            if run < len(self._begins) and self._begins[run] == after + 1:
                return run
        sizes = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
        fitting = [size for size in sizes if size >= wanted]
        return sizes.index(min(fitting) if fitting else max(sizes))

    def _take_front(self, run: int, count: int) -> None:
        self._begins[run] += count
        if self._begins[run] == self._ends[run]:
            del self._begins[run], self._ends[run]

    def _insert_run(self, begin: int, end: int) -> None:
        """Add [begin, end) to the free runs, joined with its neighbours."""
        at = bisect_right(self._begins, begin)
        joins_left = at > 0 and self._ends[at - 1] == begin
        joins_right = at < len(self._begins) and self._begins[at] == end
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._begins[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._begins[at] = begin
        else:
            self._begins.insert(at, begin)
            self._ends.insert(at, end)


def _runs(pages: PageIds) -> list[tuple[int, int]]:
    """Sorted page ids as maximal [begin, end) runs."""
    if not len(pages):
        return []
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(pages, breaks)]
