"""Page pool: placement, reservations, generations, and random traces against a model that keeps plain sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninferd.memory.errors import InvariantError
from ninferd.memory.pages import PageIds, PagePool, PageReservation


def _reserve(pool: PagePool, pages: int) -> PageReservation:
    reservation = pool.reserve(pages)
    assert reservation is not None
    return reservation


def _take(pool: PagePool, pages: int, after: int | None = None) -> PageIds:
    return pool.materialize(_reserve(pool, pages), pages, after)


def test_reservations_count_against_what_is_available() -> None:
    pool = PagePool(10)
    first = _reserve(pool, 6)
    assert pool.available == 4
    assert pool.reserve(5) is None
    pool.materialize(first, 2)
    assert (pool.available, pool.allocated, pool.reserved) == (4, 2, 4)
    pool.cancel(first)
    assert (pool.available, pool.allocated, pool.reserved) == (8, 2, 0)


def test_more_than_reserved_is_a_logic_error() -> None:
    pool = PagePool(4)
    with pytest.raises(InvariantError, match="2 pages wanted, 1 left"):
        pool.materialize(_reserve(pool, 1), 2)


def test_placement_continues_then_fits_tightest_then_splits() -> None:
    pool = PagePool(20)
    everything = _take(pool, 20)
    for begin, end in ((2, 4), (6, 12), (14, 17)):  # free runs of 2, 6 and 3 pages
        pool.release(everything[begin:end])
    assert pool.census().free_runs == 3
    assert _take(pool, 2, after=5).tolist() == [6, 7]  # continues page 5, though [2, 4) fits tighter
    assert _take(pool, 2, after=0).tolist() == [2, 3]  # nothing continues page 0: tightest fit
    assert _take(pool, 6).tolist() == [8, 9, 10, 11, 14, 15]  # no run holds 6: the largest, then the rest
    pool.check()


def test_released_neighbours_join() -> None:
    pool = PagePool(8)
    pages = _take(pool, 8)
    pool.release(pages[2:4])
    pool.release(pages[5:6])
    pool.release(pages[4:5])
    assert pool.census().free_runs == 1
    assert pool.census().largest_free_run == 4


def test_release_to_a_reservation_keeps_the_promise() -> None:
    pool = PagePool(4)
    reservation = _reserve(pool, 4)
    pages = pool.materialize(reservation, 3)
    pool.release(pages[1:], to=reservation)
    assert (reservation.remaining, pool.available) == (3, 0)
    assert len(pool.materialize(reservation, 3, after=int(pages[0]))) == 3


def test_generation_grows_when_a_page_is_freed() -> None:
    pool = PagePool(3)
    pages = _take(pool, 2)
    assert pool.generations.tolist() == [0, 0, 0]
    pool.release(pages[:1])
    assert pool.generations.tolist() == [1, 0, 0]


@pytest.mark.parametrize("pages", [[0, 0], [3]], ids=["twice in one call", "already free"])
def test_double_release_is_an_error(pages: list[int]) -> None:
    pool = PagePool(4)
    _take(pool, 2)
    with pytest.raises(InvariantError, match="released twice"):
        pool.release(np.array(pages, np.int32))


def test_check_sees_a_corrupted_count() -> None:
    pool = PagePool(4)
    pool.allocated = 1
    with pytest.raises(InvariantError, match="4 free"):
        pool.check()


class PoolTrace(RuleBasedStateMachine):
    """Owners that reserve, take and give back, mirrored in plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(40)
        self.owners: list[tuple[PageReservation, list[int]]] = []

    @rule(pages=st.integers(0, 45))
    def reserve(self, pages: int) -> None:
        free = 40 - sum(reservation.remaining + len(taken) for reservation, taken in self.owners)
        reservation = self.pool.reserve(pages)
        assert (reservation is not None) == (pages <= free)
        if reservation is not None:
            self.owners.append((reservation, []))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        reservation, taken = data.draw(st.sampled_from(self.owners))
        count = data.draw(st.integers(0, reservation.remaining))
        taken += self.pool.materialize(reservation, count, taken[-1] if taken else None).tolist()

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def give_back_a_tail(self, data: st.DataObject) -> None:
        reservation, taken = data.draw(st.sampled_from(self.owners))
        keep = data.draw(st.integers(0, len(taken)))
        self.pool.release(np.array(taken[keep:], np.int32), to=reservation)
        del taken[keep:]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.owners) - 1))
        reservation, taken = self.owners.pop(index)
        self.pool.release(np.array(taken, np.int32))
        self.pool.cancel(reservation)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        pages = [page for _, taken in self.owners for page in taken]
        assert len(set(pages)) == len(pages) == self.pool.allocated
        assert sum(reservation.remaining for reservation, _ in self.owners) == self.pool.reserved


PoolTrace.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_random_traces = PoolTrace.TestCase
