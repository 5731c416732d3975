"""Host slabs: a quarter at the start, growth by chunks within the budget, and only trailing chunks returned."""

from __future__ import annotations

import numpy as np
import pytest

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_budget import HostMemory
from ninferd.memory.host_slabs import HostSlabs, Slabs, slab_bytes_for
from tests.memory.fakes import GIB, FakeHost, FakePinned, make_slabs


def _take(slabs: HostSlabs, count: int) -> Slabs:
    taken = slabs.take(count)
    assert taken is not None
    return taken


@pytest.mark.parametrize(
    ("bundle_bytes", "slab_bytes"),
    [(1_179_648, 1_179_648), (1_179_648 + 73_728, 1_253_376), (1, 4096), (4097, 8192)],
    ids=["nvfp4 27b", "nvfp4 27b with mtp", "1 byte", "4097 bytes"],
)
def test_a_slab_is_a_bundle_rounded_to_4_kib(bundle_bytes: int, slab_bytes: int) -> None:
    assert slab_bytes_for(bundle_bytes) == slab_bytes


def test_a_quarter_is_pinned_at_the_start() -> None:
    pinned = FakePinned()
    slabs = make_slabs(64, pinned=pinned)
    assert (slabs.capacity, slabs.free, pinned.sizes) == (16, 16, [16 * 4096])


def test_lowest_free_slabs_first() -> None:
    slabs = make_slabs(64)
    first = _take(slabs, 6)
    assert first.tolist() == [0, 1, 2, 3, 4, 5]
    slabs.give(np.array([1, 4], np.int32))
    assert _take(slabs, 3).tolist() == [1, 4, 6]
    slabs.check()


def test_more_than_free_is_refused_and_never_grows() -> None:
    slabs = make_slabs(64)
    assert slabs.take(17) is None
    assert (slabs.capacity, slabs.free, slabs.counters.refusals) == (16, 16, 1)


def test_a_slab_given_back_twice_is_an_error() -> None:
    slabs = make_slabs(64)
    taken = _take(slabs, 2)
    slabs.give(taken[:1])
    with pytest.raises(InvariantError, match="twice"):
        slabs.give(taken)


def test_fit_is_pinned_growable_or_blocked_and_changes_nothing() -> None:
    slabs = make_slabs(64)
    assert [slabs.fit(n) for n in (16, 17, 64, 65)] == ["pinned", "growable", "growable", "blocked"]
    assert (slabs.capacity, slabs.counters.grows, slabs.counters.refusals) == (16, 0, 0)


def test_growth_is_a_chunk_or_what_is_missing_and_ends_at_the_ceiling() -> None:
    slabs = make_slabs(64, chunk=10)
    assert slabs.grow_for(17)
    assert slabs.capacity == 26
    assert slabs.grow_for(50)
    assert slabs.capacity == 50  # 24 missing, more than a chunk
    assert slabs.grow_for(55)
    assert slabs.capacity == 60
    assert slabs.grow_for(61)
    assert slabs.capacity == 64  # a whole chunk would pass the ceiling
    assert not slabs.grow_for(65)
    assert (slabs.counters.grows, slabs.counters.last_veto) == (4, "MaxBytes")
    slabs.check()


def test_growth_shrinks_to_what_is_missing_where_a_chunk_would_eat_the_reserve() -> None:
    host = FakeHost(HostMemory(4 * GIB + 3 * 4096, None))
    slabs = make_slabs(64, host=host)
    assert slabs.obtainable() == 19
    assert slabs.grow_for(19)
    assert slabs.capacity == 19


def test_growth_into_the_reserve_is_refused_and_told() -> None:
    host = FakeHost(HostMemory(4 * GIB + 4095, None))
    slabs = make_slabs(64, host=host)
    assert slabs.fit(17) == "blocked"
    assert not slabs.grow_for(17)
    counters = slabs.counters
    assert (counters.policy_refusals, counters.ram_refusals, counters.pin_failures) == (1, 1, 0)
    assert (counters.last_veto, counters.last_wanted_bytes) == ("Reserve", 4096)
    assert counters.last_available_bytes == 4 * GIB + 4095
    host.memory = HostMemory(5 * GIB, None)
    assert slabs.grow_for(17)


def test_s29_an_unreadable_host_keeps_the_first_quarter_and_grows_no_more() -> None:
    slabs = make_slabs(64, host=FakeHost(None))
    assert (slabs.capacity, slabs.obtainable()) == (16, 16)
    assert not slabs.grow_for(17)
    assert slabs.counters.last_veto == "InvalidReading"


def test_s21_a_failed_pin_is_counted_apart_and_may_be_tried_again() -> None:
    pinned = FakePinned()
    slabs = make_slabs(64, pinned=pinned)
    pinned.failures = 1
    assert not slabs.grow_for(17)
    assert (slabs.counters.pin_failures, slabs.counters.policy_refusals) == (1, 0)
    assert slabs.grow_for(17)


def test_s26_only_whole_free_trailing_chunks_are_returned_never_the_first() -> None:
    pinned = FakePinned()
    slabs = make_slabs(64, chunk=16, pinned=pinned)
    assert slabs.grow_for(32)
    assert slabs.grow_for(48)
    taken = _take(slabs, 40)  # the third chunk holds slabs 32..39
    slabs.give(taken[16:32])  # the middle chunk is free, the last is not
    assert slabs.shrink_idle() == 0
    slabs.give(taken[32:])
    assert slabs.shrink_idle() == 32 * 4096
    slabs.give(taken[:16])
    assert slabs.shrink_idle() == 0
    assert (slabs.capacity, slabs.free, pinned.sizes) == (16, 16, [16 * 4096])
    slabs.check()


def test_s27_s28_scattered_free_slabs_serve_any_request() -> None:
    slabs = make_slabs(64)
    taken = _take(slabs, 16)
    slabs.give(taken[::2])
    assert slabs.largest_free_run == 1
    assert _take(slabs, 8).tolist() == taken[::2].tolist()
