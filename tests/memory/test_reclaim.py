"""The planner: order of victims, minimality, limits of a demand, value by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ninferd.memory.reclaim import Demand, ReclaimPlan, plan_reclaim
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.taps import PromptOutline
from ninferd.memory.value import CostModel
from ninferd.memory.worth import density, exclusive, retained_below
from tests.memory.hash_engine import SLAB, HashEngine


def _engine(*, host_slabs: int = 256, pages: int = 32, retained_images: int = 4) -> HashEngine:
    return HashEngine(pages=pages, host_slabs=host_slabs, retained_images=retained_images, chunk=2048)


def _of(engine: HashEngine, session: str) -> list[Snapshot]:
    found = [s for s in engine.stores.tree.snapshots() if s.session == session]
    return sorted(found, key=lambda snapshot: snapshot.frontier)


def _plan(engine: HashEngine, demand: Demand) -> ReclaimPlan:
    plan = plan_reclaim(engine.stores, demand)
    assert plan is not None
    return plan


def test_nothing_to_do_for_what_is_free() -> None:
    engine = _engine()
    engine.run([1] * 640, 1, "a")
    assert _plan(engine, Demand(pages=22, slots=5)).is_empty


def test_the_least_recently_used_end_first() -> None:
    engine = _engine()
    first = engine.run([1] * 640, 1, "a")
    engine.run([2] * 640, 1, "b")
    engine.run(first.turn([3]), 1, "a")  # a is newer now: 10 pages and a tail
    plan = _plan(engine, Demand(pages=11 + 4))
    assert plan.page_drops.tolist() == _of(engine, "b")[0].anchored.pages[::-1][:4].tolist()
    assert not plan.moves
    assert not plan.evictions


def test_the_same_state_gives_the_same_plan() -> None:
    engine = _engine(host_slabs=20)
    for n in range(3):
        engine.run([n] * (300 + n), 1, str(n))
    demand = Demand(pages=30, slots=6)
    first, second = _plan(engine, demand), _plan(engine, demand)
    for one in dataclasses.fields(ReclaimPlan):
        assert np.array_equal(getattr(first, one.name), getattr(second, one.name)), one.name


def test_a_shared_beginning_leaves_after_both_ends() -> None:
    engine = _engine()
    for n in range(2):
        engine.run([*([9] * 128), *([n] * 128)], 1, str(n), outline=PromptOutline(system_end=128))
    assert engine.stores.pool.allocated == 6
    order = _plan(engine, Demand(pages=32)).page_drops
    shared = engine.stores.tree.match(_of(engine, "0")[-1].anchored.tokens)
    assert shared.blocks == 0  # the end alone is no prefix
    beginning = _of(engine, "0")[-1].anchored.path_pages()[:2]
    assert set(order[-2:].tolist()) == set(beginning.tolist())


@pytest.mark.parametrize(
    ("demand", "possible"),
    [(Demand(pages=32), True), (Demand(pages=33), False), (Demand(slots=6), True), (Demand(slots=7), False)],
    ids=["all pages", "more pages than there are", "all slots", "more slots than there are"],
)
def test_what_no_eviction_can_give_is_no_plan(demand: Demand, possible: bool) -> None:
    engine = _engine(host_slabs=0)
    engine.run([1] * 640, 1, "a")
    assert (plan_reclaim(engine.stores, demand) is not None) is possible


def test_without_a_host_the_cheapest_conversation_goes_and_only_that() -> None:
    engine = _engine(host_slabs=0)
    engine.run([1] * 200, 1, "small")
    engine.run([2] * 1400, 1, "large")
    plan = _plan(engine, Demand(pages=9))  # 6 are free
    assert [s.session for s in plan.evictions] == ["small"]


def test_points_of_one_path_that_free_pages_only_together_go_together() -> None:
    engine = _engine(host_slabs=0, pages=14)
    outline = PromptOutline(client_markers=(320, 576))
    engine.run([1] * 640, 1, "a", outline=outline)
    assert engine.stores.tree.live == 3
    plan = _plan(engine, Demand(pages=14))
    assert len(plan.evictions) == 3
    # Ten pages are in use; the deepest point alone frees the last one, the marker at 576 four more.
    assert [s.frontier for s in _plan(engine, Demand(pages=4 + 1)).evictions] == [640]
    assert sorted(s.frontier for s in _plan(engine, Demand(pages=4 + 2)).evictions) == [576, 640]


def test_a_demand_loses_nothing_that_is_worth_more() -> None:
    engine = _engine(host_slabs=14)
    engine.run([1] * 768, 1, "a")  # fills the host
    (kept,) = _of(engine, "a")
    worth = density(engine.stores, kept)
    engine.stores.pages.drop_device(engine.stores.pages.droppable(kept.anchored.pages))
    engine.stores.images.drop_device(kept.image)
    assert plan_reclaim(engine.stores, Demand(slabs=1, worth=worth)) is None
    assert _plan(engine, Demand(slabs=1, worth=worth * 1.01)).evictions == (kept,)


def test_superseded_points_go_whatever_they_are_worth() -> None:
    engine = _engine(host_slabs=16)
    first = engine.run([1] * 640, 1, "a")
    engine.run(first.turn([2] * 60), 1, "a")  # 10 pages, a tail, and two images of 2 slabs: 15 slabs
    older, newer = _of(engine, "a")
    assert older.superseded
    plan = _plan(engine, Demand(slabs=3, worth=0.0))
    assert plan.evictions == (older,)
    assert not newer.superseded


def test_a_lossless_demand_neither_moves_nor_evicts() -> None:
    engine = _engine()
    engine.device.refuse = 1
    engine.run([1] * 640, 1, "a")  # 10 pages on the device alone
    engine.run([2] * 640, 1, "b")
    assert len(_plan(engine, Demand(pages=12 + 10, lossless=True)).page_drops) == 10
    assert plan_reclaim(engine.stores, Demand(pages=12 + 11, lossless=True)) is None
    assert len(_plan(engine, Demand(pages=12 + 11)).page_moves) == 1


def test_density_by_hand() -> None:
    engine = _engine()
    engine.stores.costs = CostModel(
        h2d_batch_ns=0.0,
        copy_op_ns=1.0,
        copy_byte_ns=0.0,
        prefill_chunk_ns=0.0,
        prefill_token_ns=3.0,
        prefill_pair_ns=0.0,
    )
    first = engine.run([1] * 200, 1, "a", outline=PromptOutline(opener=128))
    engine.run([2] * 64, 1)
    tap, end = _of(engine, "a")
    (other,) = _of(engine, "")
    assert first.ended
    assert (retained_below(tap), retained_below(end)) == (0, 128)
    assert [len(s.pages) for s in exclusive(tap)] == []  # the end needs its pages, too
    assert [len(s.pages) for s in exclusive(end)] == [1]
    # Restoring an image of two slabs costs 2 ns. Both of the newest of its session: weight 4.
    assert density(engine.stores, tap) == pytest.approx(4 * (128 * 3 - 2) / (2 * SLAB))
    assert density(engine.stores, end) == pytest.approx(4 * (72 * 3 - 2) / (4 * SLAB))  # image, tail, own page
    assert density(engine.stores, other) == pytest.approx((64 * 3 - 2) / (3 * SLAB))
    other.hits = 2
    other.age = 7.0
    assert density(engine.stores, other) == pytest.approx(7 + 3 * (64 * 3 - 2) / (3 * SLAB))
