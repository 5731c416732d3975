"""Scenarios S-16 to S-30: device pressure, slot pressure, host pressure. Numbers are derived by hand.

What ends is written through to the host at once, so pressure on the device drops copies that exist twice and moves
nothing; the specification's numbers assume a planner that copies under pressure. Page geometry as in ``reuse``.
"""

from __future__ import annotations

import pytest

from ninferd.memory.admission import Refused
from ninferd.memory.host_budget import HostMemory
from ninferd.memory.taps import PromptOutline
from tests.memory.fakes import GIB
from tests.memory.hash_engine import SLAB, HashEngine, Job, low_memory


def _engine(
    *,
    pages: int = 32,
    lanes: int = 2,
    retained_images: int = 2,
    host_slabs: int = 256,
    chunk: int = 2048,
    start_full: bool = True,
) -> HashEngine:
    """Chunks longer than any prompt: the ends of prompts are not tapped, so that numbers stay small."""
    return HashEngine(
        pages=pages,
        lanes=lanes,
        retained_images=retained_images,
        host_slabs=host_slabs,
        chunk=chunk,
        start_full=start_full,
    )


def _fill(engine: HashEngine) -> tuple[Job, Job]:
    """Sessions a and b of 767 positions: 12 pages each, of 32."""
    return engine.run([1] * 700, 68, "a"), engine.run([2] * 700, 68, "b")


def test_s16_device_pressure_drops_what_the_host_has_too() -> None:
    engine = _engine()
    _fill(engine)
    kv, pressure = engine.counters.kv_transfers, engine.counters.pressure
    assert (kv.main_kv_d2h_pages, engine.stores.pool.available) == (24, 8)
    third = engine.submit([3] * 960, 1, "c")  # 15 pages: 7 too many
    engine.step()
    assert third.cached == 0
    assert (kv.main_kv_d2h_pages, kv.main_kv_h2d_pages) == (24, 0)
    assert (pressure.private_owners_demoted, pressure.private_owners_demoted_kv) == (1, 1)
    assert (pressure.private_owners_demoted_kv_only, pressure.private_owners_evicted, pressure.searches) == (1, 0, 1)
    engine.drain()
    assert kv.main_kv_d2h_pages == 24 + 15


def test_s17_a_conversation_that_was_pressed_out_comes_back() -> None:
    engine = _engine()
    first, _ = _fill(engine)
    engine.run([3] * 960, 1, "c")
    again = engine.run(first.turn([4] * 39), 1, "a")
    assert (len(again.tokens), again.cached, again.computed) == (807, 767, 40)
    kv, reuse = engine.counters.kv_transfers, engine.counters.cache_reuse
    # Of a's 12 pages the tail and six full ones had left. Room: 8 pages of b, older than c.
    assert kv.main_kv_h2d_pages == 7
    assert engine.counters.pressure.private_owners_demoted_kv == 2
    # New of a when it ends: page 11, which was its tail, and page 12.
    assert kv.main_kv_d2h_pages == 24 + 15 + 2
    assert (reuse.root_selections, reuse.private_endpoint_selections) == (3, 1)
    assert engine.counters.state_transfers.state_moves == 1  # its image had not left
    assert engine.counters.pressure.private_owners_evicted == 0


def test_s18_what_could_not_be_written_through_is_moved_before_anything_is_lost() -> None:
    engine = _engine()
    engine.device.refuse = 1  # the copy of a cannot begin
    _fill(engine)
    kv = engine.counters.kv_transfers
    assert kv.main_kv_d2h_pages == 12
    engine.run([3] * 1700, 1, "c")  # 27 pages: 12 of b are dropped, 7 of a moved
    assert kv.main_kv_d2h_pages == 12 + 7 + 27
    assert engine.counters.pressure.private_owners_evicted == 0
    assert engine.counters.pressure.private_owners_demoted_kv == 2


def test_s19_growth_is_reachable_from_a_plan() -> None:
    engine = _engine(host_slabs=64, start_full=False)
    assert engine.stores.slabs.capacity == 16
    _fill(engine)  # 12 pages and 2 slabs of an image each: the second does not fit
    growth = engine.counters.growth
    assert (growth.host_kv_fit_growable, growth.host_kv_grows, growth.host_kv_fit_blocked) == (1, 1, 0)
    assert (engine.stores.slabs.capacity, engine.stores.slabs.taken) == (32, 28)
    assert engine.counters.pressure.private_owners_evicted == 0


def test_s19_growth_makes_room_for_what_must_be_moved() -> None:
    engine = _engine(host_slabs=64, start_full=False)
    engine.device.refuse = 1
    first, _ = _fill(engine)  # a is on the device alone; b has taken 14 of the 16 slabs
    engine.run([3] * 1700, 1, "c", retain=False)  # 27 pages: 12 of b are dropped, 7 of a moved; 5 slabs are missing
    growth = engine.counters.growth
    assert (growth.host_kv_fit_growable, growth.host_kv_grows) == (1, 1)
    assert engine.counters.pressure.private_owners_evicted == 0
    assert engine.run(first.turn([5]), 1, "a").cached == 767


def test_s20_refused_growth_costs_what_is_worth_least() -> None:
    engine = _engine(host_slabs=64, start_full=False)
    engine.host.memory = low_memory()
    first, second = _fill(engine)
    assert engine.counters.extras.spill_skipped_host_blocked == 1  # b stays on the device alone
    assert engine.counters.pressure.private_owners_evicted == 0
    third = engine.run([3] * 1700, 1, "c")  # 27 pages: 8 free, 12 of a dropped, 7 of b must be moved
    # The host has two free slabs: a conversation goes, and with its 14 slabs the 7 pages fit.
    assert engine.counters.pressure.private_owners_evicted == 1
    assert engine.stores.slabs.counters.last_veto == "Reserve"
    assert engine.stores.slabs.counters.policy_refusals >= 1
    assert engine.counters.pressure.evictions_demote_possible == 0
    assert third.ended
    assert engine.run(second.turn([5]), 1, "b").cached == 767
    assert engine.run(first.turn([5]), 1, "a").cached == 0


def test_s21_a_failed_pin_is_no_error() -> None:
    engine = _engine(host_slabs=64, start_full=False)
    engine.pinned.failures = 1
    first, second = _fill(engine)
    assert engine.stores.slabs.counters.pin_failures == 1
    assert engine.counters.pressure.private_owners_evicted == 0
    engine.run([3] * 960, 1, "c")  # the next attempt grows
    assert engine.stores.slabs.counters.pin_failures == 1
    assert engine.counters.growth.host_kv_grows == 1
    assert [engine.run(job.turn([5]), 1, job.session).cached for job in (first, second)] == [767, 767]


def test_s22_slot_pressure_drops_the_image_that_was_used_least_recently() -> None:
    engine = _engine()
    jobs = [engine.run([n] * 100, 1, f"s{n}") for n in range(4)]
    state, pressure = engine.counters.state_transfers, engine.counters.pressure
    assert (state.state_d2h_count, engine.stores.images.free) == (4, 0)
    engine.run([4] * 100, 1, "s4")
    assert state.state_d2h_count == 5
    assert (pressure.private_owners_demoted, pressure.private_owners_demoted_kv) == (1, 0)
    again = engine.run(jobs[0].turn([9] * 20), 1, "s0")
    assert (again.cached, again.computed) == (100, 21)
    assert (state.state_h2d_count, state.state_restores, state.state_d2h_count) == (1, 1, 6)
    assert engine.counters.kv_transfers.main_kv_h2d_pages == 0
    assert (pressure.private_owners_evicted, engine.counters.cache_reuse.private_endpoint_selections) == (0, 1)


def test_s23_a_full_host_keeps_what_is_dear() -> None:
    engine = _engine(host_slabs=14, retained_images=0)  # exactly 12 pages and an image; two device images
    cheap = engine.run([1] * 100, 1, "x")
    dear = engine.run([2] * 700, 68, "y")
    # y is worth more per byte: x gives its host copies up, and is still on the device.
    assert engine.counters.pressure.private_owners_evicted == 0
    assert engine.stores.slabs.free == 0
    engine.run([3] * 2048, 1, "z", retain=False)  # all 32 pages: both must leave
    pressure = engine.counters.pressure
    assert (pressure.private_owners_evicted, pressure.evictions_demote_possible) == (1, 0)
    assert engine.run(dear.turn([5]), 1, "y").cached == 767
    assert engine.run(cheap.turn([5]), 1, "x").cached == 0


def test_s24_copies_that_exist_twice_go_first() -> None:
    engine = _engine()
    engine.device.refuse = 1
    only_here = engine.run([1] * 640, 1, "a")  # 10 pages, on the device alone, and older
    engine.run([2] * 640, 1, "b")  # 10 pages, on both
    engine.run([3] * 1000, 1, "c", retain=False)  # 16 pages: 4 too many
    assert engine.counters.kv_transfers.main_kv_d2h_pages == 10
    pages = engine.stores.pages
    assert pages.on_device(engine.stores.tree.match(only_here.tokens).pages).all()
    assert engine.counters.pressure.private_owners_degraded == 1


def test_s25_what_is_in_use_is_no_victim() -> None:
    engine = _engine()
    running = engine.submit([1] * 1000, 300)  # entitled to 21 pages
    engine.step()
    blocked = engine.submit([2] * 700, 68)
    before = vars(engine.counters.pressure).copy()
    engine.step()
    assert isinstance(blocked.refused, Refused)
    assert blocked.refused.kind == "blocked"
    assert "12 cache pages" in blocked.refused.message
    assert "11 of 32 pages" in blocked.refused.message
    assert vars(engine.counters.pressure) == before
    engine.drain()
    assert running.ended
    assert blocked.ended


def test_s30_no_more_than_needed_leaves() -> None:
    engine = _engine()
    first, _ = _fill(engine)
    engine.run([3] * 513, 1, "c")  # 9 pages: one too many
    pages = engine.stores.pages
    snapshot = engine.stores.tree.match(engine.stores.tree.root.tokens).snapshots
    assert snapshot == ()
    mine = next(s for s in engine.stores.tree.snapshots() if s.session == "a")
    assert pages.on_device(mine.anchored.path_pages()).all()
    assert not pages.on_device(mine.tail_page).any()
    engine.run([4] * 128, 1, "d")
    assert pages.on_device(mine.anchored.path_pages()).tolist() == [True] * 9 + [False] * 2
    assert engine.run(first.turn([5] * 9), 1, "a").cached == 767


def test_growth_stops_at_what_a_control_group_leaves() -> None:
    engine = _engine(host_slabs=64, start_full=False)
    engine.host.memory = HostMemory(64 * GIB, 4 * GIB + 12 * SLAB)  # 12 slabs above the reserve
    _fill(engine)
    assert engine.stores.slabs.capacity == 28  # not the chunk of 16
    assert engine.stores.slabs.counters.policy_refusals == 0


def test_a_full_host_changes_sides_before_anything_is_lost() -> None:
    engine = _engine(host_slabs=14)
    first = engine.run([1] * 100, 1, "x")
    second = engine.run([2] * 700, 68, "y")
    engine.run([3] * 2048, 1, "z", retain=False)
    # As S-23, but both images may stay on the device: y's copy on the host makes room for the two pages of x.
    assert engine.counters.pressure.private_owners_evicted == 0
    assert engine.run(second.turn([5]), 1, "y").cached == 767
    assert engine.run(first.turn([5]), 1, "x").cached == 100


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_tap_takes_only_what_nobody_misses(lanes: int) -> None:
    engine = _engine(pages=16, lanes=lanes, retained_images=0, host_slabs=0)
    job = engine.run([1] * 700, 5, outline=PromptOutline(client_markers=(300,)))
    skipped = engine.counters.pressure.capture_skips_not_feasible_no_pressure
    assert skipped == (1 if lanes == 1 else 0)  # with two lanes the slot of the other one is free
    assert job.ended


def test_the_prefix_of_a_blocked_head_comes_back_while_it_waits() -> None:
    engine = _engine()
    first = engine.run([1] * 700, 68, "a")
    engine.run([3] * 2048, 1, "x")  # all 32 pages: a leaves the device
    running = engine.submit([4] * 1000, 340, "long")  # entitled to 21 pages
    engine.step()
    again = engine.submit(first.turn([9] * 10), 5, "a")  # 13 pages; 11 are not in use, all of x
    for _ in range(4):
        engine.step()
    assert again.refused is not None
    assert again.refused.kind == "blocked"
    kv = engine.counters.kv_transfers
    assert (engine.counters.extras.prefetched_pages, kv.main_kv_h2d_pages) == (11, 11)
    engine.drain()
    assert (running.ended, again.cached) == (True, 767)
    assert kv.main_kv_h2d_pages == 12  # only the tail was left to restore
    assert engine.counters.pressure.private_owners_evicted == 0


def test_copies_under_way_are_waited_for_before_anything_is_lost() -> None:
    engine = _engine(host_slabs=14)
    engine.device.refuse = 1
    small = engine.run([1] * 200, 1, "small")  # 4 pages, on the device alone
    engine.device.hold = True
    engine.run_until_ended([2] * 768, 1)  # 12 pages; their copies take the whole host and have not landed
    third = engine.submit([3] * 1088, 1)  # 17 pages: one too many
    engine.step()
    assert third.refused is not None
    assert third.refused.kind == "needs_transfer"
    engine.device.hold = False
    engine.drain()
    assert engine.counters.pressure.private_owners_evicted == 0
    assert engine.run(small.turn([4]), 1, "small").cached == 200
