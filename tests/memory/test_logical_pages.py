"""Logical pages: preconditions of every operation, and random traces in which every byte is tracked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import Slabs
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.page_columns import NOWHERE, Handles
from tests.memory.fakes import make_pages, reserve


def _written(pages: LogicalPages, count: int = 1, columns: int = 64) -> Handles:
    handles = pages.create(count, reserve(pages.pool, count))
    pages.commit_columns(handles, columns)
    return handles


def _idle(pages: LogicalPages, count: int = 1) -> Handles:
    """Complete pages that no running sequence uses."""
    handles = _written(pages, count)
    pages.freeze(handles)
    pages.deactivate(handles)
    return handles


def _slabs(pages: LogicalPages, count: int) -> Slabs:
    taken = pages.slabs.take(count)
    assert taken is not None
    return taken


def _backed(pages: LogicalPages, count: int = 1) -> Handles:
    handles = _idle(pages, count)
    pages.start_spill(handles, _slabs(pages, count))
    pages.end_spill(handles, landed=True)
    return handles


def _on_host(pages: LogicalPages, count: int = 1) -> Handles:
    handles = _backed(pages, count)
    pages.drop_device(handles)
    return handles


def test_life_of_a_page() -> None:
    pages = make_pages(4, 4)
    handles = _backed(pages, 2)
    assert (pages.pool.allocated, pages.slabs.taken) == (2, 2)
    pages.drop_device(handles)
    assert pages.pool.allocated == 0
    slabs, destinations = pages.start_restore(handles, reserve(pages.pool, 2))
    assert slabs.tolist() == pages.host[pages.ids(handles)].tolist()
    assert destinations.tolist() == pages.pending_device[pages.ids(handles)].tolist()
    pages.end_restore(handles, landed=True)
    pages.check()
    pages.release(handles)
    assert (pages.pool.allocated, pages.slabs.taken, pages.live) == (0, 0, 0)


def test_a_handle_does_not_outlive_its_page() -> None:
    pages = make_pages(4, 4)
    stale = _idle(pages)
    pages.release(stale)
    fresh = _idle(pages)
    assert stale[0] & 0xFFFFFFFF == fresh[0] & 0xFFFFFFFF  # the row is in use again
    with pytest.raises(InvariantError, match="outlived"):
        pages.ids(stale)


def test_a_failed_copy_leaves_what_was() -> None:
    pages = make_pages(4, 4)
    device_only = _idle(pages)
    pages.start_spill(device_only, _slabs(pages, 1))
    pages.end_spill(device_only, landed=False)
    assert (pages.slabs.taken, pages.host[pages.ids(device_only)].tolist()) == (0, [NOWHERE])
    host_only = _on_host(pages)
    pages.start_restore(host_only, reserve(pages.pool, 1))
    pages.end_restore(host_only, landed=False)
    assert (pages.pool.allocated, pages.device[pages.ids(host_only)].tolist()) == (1, [NOWHERE])
    pages.check()


def test_a_page_released_under_a_copy_goes_when_the_copy_ends() -> None:
    pages = make_pages(4, 4)
    handles = _idle(pages)
    pages.start_spill(handles, _slabs(pages, 1))
    pages.release(handles)
    assert pages.pool.allocated == 1
    pages.check()
    pages.end_spill(handles, landed=True)
    assert (pages.pool.allocated, pages.slabs.taken, pages.live) == (0, 0, 0)


def test_taking_over_copies_nothing_and_leaves_the_host_copy() -> None:
    pages = make_pages(4, 4)
    handles = _backed(pages)
    page = int(pages.device[pages.ids(handles)][0])
    taken = pages.take_over_device(handles)
    assert pages.device[pages.ids(taken)].tolist() == [page]
    assert pages.columns[pages.ids(taken)].tolist() == [64]
    assert (pages.pool.allocated, pages.slabs.taken) == (1, 1)
    pages.check()


def test_s40_a_host_copy_of_what_was_truncated_is_not_current() -> None:
    pages = make_pages(4, 4)
    handles = _backed(pages)
    ids = pages.ids(handles)
    pages.epoch[ids] += 1  # what a truncation does
    assert pages.current(ids).tolist() == [False]
    with pytest.raises(InvariantError, match="current host copy"):
        pages.drop_device(handles)


def test_columns_only_grow_and_truncation_stops_at_what_is_protected() -> None:
    pages = make_pages(4, 4)
    handles = pages.create(1, reserve(pages.pool, 1))
    pages.commit_columns(handles, 40)
    with pytest.raises(InvariantError, match="only grow"):
        pages.commit_columns(handles, 39)
    with pytest.raises(InvariantError, match="only grow"):
        pages.commit_columns(handles, 65)
    pages.truncate(handles, 10)
    assert (pages.columns[pages.ids(handles)].tolist(), pages.epoch[pages.ids(handles)].tolist()) == ([10], [1])
    pages.protected[pages.ids(handles)] = 10
    with pytest.raises(InvariantError, match="above what is protected"):
        pages.truncate(handles, 9)


Maker = Callable[[LogicalPages], Handles]
Act = Callable[[LogicalPages, Handles], object]
REFUSED: dict[str, tuple[Maker, tuple[Act, ...]]] = {
    "share a written page": (_written, (lambda pages, h: pages.share(h),)),
    "pin a written page": (_written, (lambda pages, h: pages.pin(h),)),
    "deactivate a written page": (_written, (lambda pages, h: pages.deactivate(h),)),
    "release an active reference": (_written, (lambda pages, h: pages.release(h),)),
    "spill a written page": (_written, (lambda pages, h: pages.start_spill(h, _slabs(pages, 1)),)),
    "commit to a frozen page": (_idle, (lambda pages, h: pages.commit_columns(h, 64),)),
    "freeze a frozen page": (_idle, (lambda pages, h: pages.freeze(h),)),
    "truncate a frozen page": (_idle, (lambda pages, h: pages.truncate(h, 64),)),
    "abandon a frozen page": (_idle, (lambda pages, h: pages.abandon(h),)),
    "drop the only copy": (_idle, (lambda pages, h: pages.drop_device(h),)),
    "take over the only copy": (_idle, (lambda pages, h: pages.take_over_device(h),)),
    "restore what is on the device": (_backed, (lambda pages, h: pages.start_restore(h, reserve(pages.pool, 1)),)),
    "spill twice": (_backed, (lambda pages, h: pages.start_spill(h, _slabs(pages, 1)),)),
    "drop the only host copy": (_on_host, (lambda pages, h: pages.drop_host(h),)),
    "activate off the device": (_on_host, (lambda pages, h: pages.activate(h),)),
    "more active than referenced": (
        _idle,
        (
            lambda pages, h: pages.activate(h),
            lambda pages, h: pages.activate(h),
        ),
    ),
    "unpin what is not pinned": (_idle, (lambda pages, h: pages.unpin(h),)),
    "end a spill that is not": (_idle, (lambda pages, h: pages.end_spill(h, landed=True),)),
    "end a restore that is not": (_idle, (lambda pages, h: pages.end_restore(h, landed=True),)),
    "drop under a pin": (
        _backed,
        (
            lambda pages, h: pages.pin(h),
            lambda pages, h: pages.drop_device(h),
        ),
    ),
    "drop the host copy under a pin": (
        _backed,
        (
            lambda pages, h: pages.pin(h),
            lambda pages, h: pages.drop_host(h),
        ),
    ),
    "take over under a pin": (
        _backed,
        (
            lambda pages, h: pages.pin(h),
            lambda pages, h: pages.take_over_device(h),
        ),
    ),
    "drop while active": (
        _backed,
        (
            lambda pages, h: pages.activate(h),
            lambda pages, h: pages.drop_device(h),
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_precondition_is_an_error(case: str) -> None:
    make, (*before, act) = REFUSED[case]
    pages = make_pages(4, 4)
    handles = make(pages)
    for step in before:
        step(pages, handles)
    with pytest.raises(InvariantError):
        act(pages, handles)


class PageTrace(RuleBasedStateMachine):
    """Random life of pages. ``truth`` is what each handle must hold; copies read their source when they land."""

    DEVICE, HOST = 12, 8

    def __init__(self) -> None:
        super().__init__()
        self.pages = make_pages(self.DEVICE, self.HOST)
        self.device_bytes: dict[int, int] = {}
        self.host_bytes: dict[int, int] = {}
        self.truth: dict[int, int] = {}
        self.refs: dict[int, int] = {}
        self.active: set[int] = set()
        self.flights: list[tuple[str, Handles]] = []
        self.stamp = 0

    def _pick(self, data: st.DataObject, choices: list[int]) -> Handles:
        return np.array([data.draw(st.sampled_from(sorted(choices)))], np.int64)

    def _row(self, handles: Handles) -> int:
        return int(self.pages.ids(handles)[0])

    def _where(self, handle: int) -> tuple[int, int, int, int]:
        row = self._row(np.array([handle]))
        pages = self.pages
        return int(pages.device[row]), int(pages.host[row]), int(pages.pending_host[row]), int(pages.pins[row])

    @precondition(lambda self: self.pages.pool.available > 0)
    @rule()
    def write(self) -> None:
        handles = _written(self.pages)
        self.pages.freeze(handles)
        self.stamp += 1
        self.device_bytes[int(self.pages.device[self._row(handles)])] = self.stamp
        self.truth[int(handles[0])], self.refs[int(handles[0])] = self.stamp, 1
        self.active.add(int(handles[0]))

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def deactivate(self, data: st.DataObject) -> None:
        handles = self._pick(data, list(self.active))
        self.pages.deactivate(handles)
        self.active.remove(int(handles[0]))

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        handles = self._pick(data, list(self.refs))
        self.pages.share(handles)
        self.refs[int(handles[0])] += 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        idle = [handle for handle, refs in self.refs.items() if refs > (handle in self.active)]
        if not idle:
            return
        handles = self._pick(data, idle)
        self.pages.release(handles)
        self.refs[int(handles[0])] -= 1
        if not self.refs[int(handles[0])]:
            del self.refs[int(handles[0])], self.truth[int(handles[0])]

    @precondition(lambda self: self.pages.slabs.free > 0)
    @rule(data=st.data())
    def start_spill(self, data: st.DataObject) -> None:
        able = [h for h in self.refs if self._where(h)[0] >= 0 and self._where(h)[1:3] == (NOWHERE, NOWHERE)]
        if able:
            handles = self._pick(data, able)
            self.pages.start_spill(handles, _slabs(self.pages, 1))
            self.flights.append(("spill", handles))

    @precondition(lambda self: self.pages.pool.available > 0)
    @rule(data=st.data())
    def start_restore(self, data: st.DataObject) -> None:
        able = [h for h in self.refs if self._where(h)[0] < 0 and self._where(h)[3] == 0]
        if able:
            handles = self._pick(data, able)
            self.pages.start_restore(handles, reserve(self.pages.pool, 1))
            self.flights.append(("restore", handles))

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), landed=st.booleans())
    def land(self, data: st.DataObject, landed: bool) -> None:
        kind, handles = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        row, pages = self._row(handles), self.pages
        if kind == "spill":
            self.host_bytes[int(pages.pending_host[row])] = self.device_bytes[int(pages.device[row])]
            pages.end_spill(handles, landed=landed)
        else:
            self.device_bytes[int(pages.pending_device[row])] = self.host_bytes[int(pages.host[row])]
            pages.end_restore(handles, landed=landed)

    @rule(data=st.data(), side=st.sampled_from(["device", "host"]))
    def drop(self, data: st.DataObject, side: str) -> None:
        able = []
        for handle in self.refs:
            device, host, _, pins = self._where(handle)
            if device >= 0 and host >= 0 and not pins and (side == "host" or handle not in self.active):
                able.append(handle)
        if able:
            handles = self._pick(data, able)
            self.pages.drop_device(handles) if side == "device" else self.pages.drop_host(handles)

    @invariant()
    def bytes_are_where_they_should_be(self) -> None:
        self.pages.check()
        self.pages.pool.check()
        self.pages.slabs.check()
        for handle, content in self.truth.items():
            device, host, _, _ = self._where(handle)
            assert device >= 0 or host >= 0
            assert device < 0 or self.device_bytes[device] == content
            assert host < 0 or self.host_bytes[host] == content

    def teardown(self) -> None:
        for _, handles in self.flights:
            row = self._row(handles)
            spill = self.pages.pending_host[row] >= 0
            (self.pages.end_spill if spill else self.pages.end_restore)(handles, landed=True)
        for handle in self.active:
            self.pages.deactivate(np.array([handle]))
        for handle, refs in self.refs.items():
            for _ in range(refs):
                self.pages.release(np.array([handle]))
        assert (self.pages.live, self.pages.pool.allocated, self.pages.slabs.taken) == (0, 0, 0)


TestPageTrace = PageTrace.TestCase
TestPageTrace.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
