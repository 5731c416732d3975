"""Scenarios S-31 to S-54 of the specification, as far as memory is concerned: races, cancellation, failures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ninferd.memory.admission import Refused
from ninferd.memory.taps import PromptOutline
from tests.memory.hash_engine import HashEngine, Job


def _engine(
    *,
    pages: int = 32,
    lanes: int = 2,
    retained_images: int = 2,
    host_slabs: int = 256,
    chunk: int = 2048,
    start_full: bool = True,
) -> HashEngine:
    """Chunks longer than any prompt, unless the test wants smaller ones."""
    return HashEngine(
        pages=pages,
        lanes=lanes,
        retained_images=retained_images,
        host_slabs=host_slabs,
        chunk=chunk,
        start_full=start_full,
    )


def _pressed_out(engine: HashEngine) -> Job:
    """A conversation of 767 positions whose 12 pages and image are on the host alone."""
    first = engine.run([1] * 700, 68, "a")
    for n in range(4):
        engine.run([20 + n] * 2048, 1, f"x{n}")
    return first


def _until(engine: HashEngine, condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        engine.step()
    raise AssertionError("it never happened")


def _next_turn(engine: HashEngine, before: Job) -> Job:
    return engine.submit(before.turn([9] * 10), 5, before.session)


def test_s31_two_prompts_in_chunks_do_not_mix() -> None:
    engine = _engine(chunk=64)
    jobs = [engine.submit([n, *([3] * 500)], 30, str(n)) for n in range(4)]
    engine.drain()
    assert all(job.ended for job in jobs)


def test_s32_what_is_pinned_by_a_plan_cannot_be_taken() -> None:
    engine = _engine(host_slabs=46)
    first = engine.run([1] * 700, 68, "a")
    engine.run([2] * 2048, 1, "b")  # takes the device; the host has no slab left for anything else
    other = engine.submit([3] * 900, 20, "other")
    _until(engine, lambda: len(other.made) == 1)
    engine.device.hold = True
    again = _next_turn(engine, first)
    _until(engine, lambda: again.tenant is not None)
    assert again.held.phase == "restoring"
    _until(engine, lambda: other.ended)  # its write-through wants 17 slabs; those of a are pinned
    engine.device.hold = False
    engine.drain()
    assert again.cached == 767
    assert engine.counters.cache_reuse.root_selections == 3


def test_s34_s36_an_admission_that_cannot_be_changes_nothing() -> None:
    engine = _engine()
    first = _pressed_out(engine)
    running = engine.submit([7] * 1500, 500, "long")  # 32 pages
    engine.step()
    before = [(s.frontier, s.lineage, s.image.slot) for s in engine.stores.tree.snapshots()]
    again = _next_turn(engine, first)
    for _ in range(20):
        engine.step()
    assert again.refused is not None
    assert again.refused.kind == "blocked"
    assert [(s.frontier, s.lineage, s.image.slot) for s in engine.stores.tree.snapshots()] == before
    engine.drain()
    assert (running.ended, again.cached) == (True, 767)


def test_s35_a_better_match_that_appears_does_not_change_the_target() -> None:
    engine = _engine(chunk=8)
    first = _pressed_out(engine)
    rival = engine.submit(first.turn([9] * 10 + [8] * 100), 1, "rival")
    _until(engine, lambda: rival.tenant is not None and rival.held.phase == "ready")
    engine.device.hold = True
    target = engine.submit(first.turn([9] * 10 + [8] * 200), 1, "a")
    _until(engine, lambda: target.tenant is not None)
    assert target.held.phase == "restoring"
    assert rival.held.frontier < 878
    _until(engine, lambda: rival.ended)
    assert engine.stores.tree.match(target.tokens).best_frontier == 878
    engine.device.hold = False
    engine.drain()
    assert (rival.cached, target.cached) == (767, 767)


@pytest.mark.parametrize("landed_first", [False, True], ids=["in flight", "landed"])
def test_s37_a_restore_that_is_cancelled_loses_nothing(landed_first: bool) -> None:
    engine = _engine()
    first = _pressed_out(engine)
    engine.device.hold = True
    again = _next_turn(engine, first)
    engine.step()
    assert again.held.phase == "restoring"
    if landed_first:
        engine.device.release()
    engine.cancel(again)
    engine.device.hold = False
    engine.drain()
    assert not engine.stores.pages.pins.any()
    assert engine.stores.pool.reserved == 0
    retried = _next_turn(engine, first)
    engine.drain()
    assert (retried.cached, engine.counters.extras.restore_corrupt_dropped) == (767, 0)


def test_s38_a_prompt_that_is_cancelled_half_way_is_not_computed_again() -> None:
    engine = _engine(chunk=128)
    job = engine.submit([n % 13 for n in range(1000)], 5, "a")
    _until(engine, lambda: job.tenant is not None and job.held.frontier == 512)
    engine.cancel(job)
    assert engine.memory.stores.pool.reserved == 0
    assert engine.run(job.tokens, 5, "a").cached == 512


@pytest.mark.parametrize("part", ["page", "tail", "state"])
def test_s39_a_damaged_slab_costs_its_snapshot_and_no_answer(part: str) -> None:
    engine = _engine()
    first = _pressed_out(engine)
    snapshot = next(s for s in engine.stores.tree.snapshots() if s.session == "a")
    pages = engine.stores.pages
    assert snapshot.image.slabs is not None
    engine.device.damaged.add(
        {
            "page": int(pages.host[pages.ids(snapshot.anchored.pages)][3]),
            "tail": int(pages.host[pages.ids(snapshot.tail_page)][0]),
            "state": int(snapshot.image.slabs[1]),
        }[part]
    )
    again = _next_turn(engine, first)
    engine.drain()
    assert (again.cached, engine.counters.extras.restore_corrupt_dropped) == (0, 1)
    assert again.ended


def test_s39_the_next_best_snapshot_serves_if_only_the_deepest_is_damaged() -> None:
    engine = _engine()
    engine.run([1] * 640, 1, "a", outline=PromptOutline(opener=320))
    for n in range(4):
        engine.run([20 + n] * 2048, 1, f"x{n}")
    deep = max(engine.stores.tree.snapshots(), key=lambda s: s.frontier if s.session == "a" else 0)
    assert deep.image.slabs is not None
    engine.device.damaged.add(int(deep.image.slabs[0]))
    assert engine.run([*([1] * 640), 5, 5], 3, "a").cached == 320


def test_s41_failed_units_cost_their_own_requests_and_leave_nothing() -> None:
    engine = _engine()
    active = [engine.submit([n] * 300, 20, str(n)) for n in range(2)]
    pending = [engine.submit([5 + n] * 300, 4, str(n)) for n in range(3)]
    _until(engine, lambda: all(job.made for job in active))
    for job in active:
        engine.fail(job)
    stores = engine.stores
    assert (stores.pool.allocated, stores.pool.reserved, stores.slabs.taken, stores.images.free) == (0, 0, 0, 4)
    engine.drain()
    assert [job.ended for job in pending] == [True] * 3
    assert [job.held.order for job in pending] == [3, 4, 5]


@pytest.mark.parametrize("site", ["restore", "write-through", "move"])
@pytest.mark.parametrize("fault", ["refuse", "fail"])
def test_s43_s44_a_copy_that_fails_anywhere_leaks_nothing(site: str, fault: str) -> None:
    engine = _engine()
    if site == "write-through":
        setattr(engine.device, fault, 1)
        engine.run([1] * 700, 68, "a")
    elif site == "restore":
        first = _pressed_out(engine)
        setattr(engine.device, fault, 1)
        again = _next_turn(engine, first)
        engine.drain()
        # A copy that could not begin is tried again; one that failed on the way is not trusted any more.
        assert again.cached == (767 if fault == "refuse" else 0)
    else:
        engine.device.refuse = 1
        engine.run([1] * 700, 68, "a")  # on the device alone
        setattr(engine.device, fault, 1)
        engine.run([2] * 1900, 3, "b")  # must move 10 pages of it
        assert engine.counters.pressure.private_owners_evicted == 0
    stores = engine.stores
    assert (stores.pool.reserved, bool(stores.pages.pins.any()), stores.flights) == (0, False, {})


def test_s45_a_tap_beside_an_admission_under_way_is_taken_if_there_is_room() -> None:
    engine = _engine(pages=64, retained_images=4)
    first = engine.run([1] * 700, 68, "a")
    for n in range(6):
        engine.run([20 + n] * 4000, 1, f"x{n}")
    before = engine.counters.active_captures_completed
    tapping = engine.submit([7] * 300, 3, "t", outline=PromptOutline(opener=200))
    again = engine.submit(first.turn([9]), 3, "a")
    engine.device.hold = True
    engine.step()  # prefills up to the tap in the step that follows the admission of the other
    engine.step()
    engine.device.hold = False
    engine.drain()
    assert (again.cached, engine.counters.active_captures_completed - before) == (767, 1)
    assert engine.counters.pressure.capture_skips_transaction_or_fork == 0
    assert engine.run([*([7] * 200), 1], 1, "t").cached == 200
    assert tapping.ended


def test_s46_without_a_free_slot_a_tap_goes_to_the_host() -> None:
    engine = _engine(lanes=1, retained_images=0)
    job = engine.submit([7] * 500, 3, "t", outline=PromptOutline(opener=300))
    engine.device.hold = True  # the sequence goes on, and writes its state, before the copy has landed
    engine.step()
    assert engine.counters.active_captures_completed == 1
    assert engine.counters.state_transfers.state_d2d_count == 0
    _until(engine, lambda: job.ended)
    engine.device.hold = False
    engine.drain()
    assert engine.counters.state_transfers.state_d2h_count == 2  # the tap, then the endpoint
    rewritten = engine.run([*([7] * 300), 1, 2, 3], 3, "t")
    assert (rewritten.cached, engine.counters.state_transfers.state_restores) == (300, 1)
    assert job.ended


@pytest.mark.parametrize("path", ["finish", "cancel", "takeover", "fail all"])
def test_s47_what_is_released_is_on_the_host_before_it_leaves_the_device(path: str) -> None:
    engine = _engine(chunk=128)
    job = engine.submit([n % 13 for n in range(640)], 30, "a", outline=PromptOutline(opener=512))
    _until(engine, lambda: len(job.made) == 10)
    if path == "cancel":
        engine.cancel(job)
    elif path == "fail all":
        engine.fail(job)  # its own state is never kept, the tap before is
    engine.drain()
    if path == "takeover":
        for n in range(4):
            engine.run([20 + n] * 2048, 1, f"x{n}")
    assert engine.counters.pressure.spill_pages > 0
    reached = {"finish": 669, "takeover": 669, "cancel": 649, "fail all": 512}[path]
    assert engine.run(job.turn([3, 3]), 1, "a").cached == reached


def test_s47_a_blocked_host_is_counted_and_costs_a_later_prefill() -> None:
    engine = _engine(host_slabs=0)
    first = engine.run([1] * 700, 5, "a")
    assert engine.counters.extras.spill_skipped_host_blocked == 1
    engine.run([2] * 2048, 1, "b")
    assert engine.counters.pressure.private_owners_evicted == 1
    assert engine.run(first.turn([3]), 1, "a").cached == 0


def test_s48_rejected_drafts_never_reach_a_snapshot() -> None:
    engine = _engine()
    job = engine.submit([1] * 120, 12, "a")
    _until(engine, lambda: len(job.made) == 6)
    table = engine.memory.map(job.held, job.held.frontier + 6)  # a draft of six tokens, over a page boundary
    assert len(table) == 1
    pages = job.held.device_pages(engine.stores.pages)
    positions = np.arange(job.held.frontier, job.held.frontier + 6)
    engine.device.kv[pages[positions // 64], positions % 64] = 0xBAD
    engine.drain()  # rejected: the state was never advanced, what follows overwrites the positions
    assert engine.run(job.turn([2] * 5), 5, "a").cached == 131


def test_s52_what_can_never_fit_is_said_at_once() -> None:
    engine = _engine()
    too_long = engine.submit([1] * 2049, 1)
    after = engine.submit([2] * 10, 1)
    engine.drain()
    assert isinstance(too_long.refused, Refused)
    assert too_long.refused.kind == "impossible"
    assert too_long.refused.message == (
        "prompt and output of 2049 tokens need 33 cache pages of 64 tokens, there are 32"
    )
    assert after.made


def test_s54_a_request_that_retains_nothing_reuses_nothing() -> None:
    engine = _engine()
    for _ in range(3):
        assert engine.run([1] * 200, 5, retain=False).cached == 0
    assert (engine.stores.tree.live, engine.stores.slabs.taken, engine.counters.active_captures_completed) == (0, 0, 0)
    assert engine.counters.cache_reuse.root_selections == 3
