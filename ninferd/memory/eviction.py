"""Carrying out a reclaim plan, and giving up snapshots. The only place where something cached is lost on purpose."""

from __future__ import annotations

import numpy as np

from ninferd.memory.flights import AfterLanding, start_spill
from ninferd.memory.page_columns import NOWHERE
from ninferd.memory.reclaim import Demand, ReclaimPlan, plan_reclaim
from ninferd.memory.snapshots import SHARED, Snapshot
from ninferd.memory.stores import Stores
from ninferd.memory.worth import density


def plan_with_growth(stores: Stores, demand: Demand) -> ReclaimPlan | None:
    """A plan whose host slabs are pinned already: growth is tried now, and a plan that is refused it does without."""
    plan = plan_reclaim(stores, demand)
    if plan is None:
        wished = demand.slabs
    elif plan.slabs or plan.evictions:
        wished = max(plan.grow_to, plan.wished_slabs)
    else:
        return plan
    growth, fit = stores.counters.growth, stores.slabs.fit(wished)
    growth.host_kv_fit_pinned += fit == "pinned"
    growth.host_kv_fit_growable += fit == "growable"
    growth.host_kv_fit_blocked += fit == "blocked"
    if fit == "pinned":
        return plan
    growth.host_kv_blocked_checks += 1
    if fit == "blocked":  # asked for nevertheless: the refusal records why something must be lost
        growth.host_kv_blocked_max_bytes = max(growth.host_kv_blocked_max_bytes, wished * stores.slabs.slab_bytes)
    growth.host_kv_pregrow_attempts += 1
    grown = stores.slabs.grow_for(wished)
    if (
        plan is not None and not grown and stores.slabs.free < plan.grow_to < wished
    ):  # with what is evicted, less will do
        grown = stores.slabs.grow_for(plan.grow_to)
    growth.host_kv_pregrows += grown
    growth.host_kv_grows += grown
    growth.host_kv_pregrow_refusals += not grown
    growth.host_kv_grow_refusals += not grown
    if plan is not None and not grown and plan.grow_to <= stores.slabs.free:
        return plan
    return plan_reclaim(stores, demand, grow=False)


def carry_out(stores: Stores, plan: ReclaimPlan, after: AfterLanding | None = None) -> bool:
    """Drop, evict, and start the moves; ``after`` is called when they have landed, and only if there are any.

    False if the moves could not begin; what was dropped and evicted until then stays so, which is a valid state.
    """
    pages, images, pressure = stores.pages, stores.images, stores.counters.pressure
    pages.drop_host(plan.host_page_drops)
    for image in plan.host_image_drops:
        images.drop_host(image)
    lost = [(each.lineage, *_slabs_of(stores, each)) for each in plan.evictions]
    for snapshot in plan.evictions:
        evict(stores, snapshot)
    _audit(stores, lost, stores.slabs.free - plan.slabs)
    pages.drop_device(plan.page_drops)
    for image in plan.image_drops:
        images.drop_device(image)
    degraded = plan.kv_lineages | plan.image_lineages
    pressure.searches += not plan.is_empty
    pressure.private_owners_degraded += len(degraded - {SHARED})
    pressure.private_owners_demoted += len(degraded - {SHARED})
    pressure.private_owners_demoted_kv += len(plan.kv_lineages - {SHARED})
    pressure.private_owners_demoted_kv_only += len(plan.kv_lineages - plan.image_lineages - {SHARED})
    pressure.shared_owners_degraded += SHARED in degraded
    return not plan.moves or start_spill(stores, plan.page_moves, plan.image_moves, after)


def evict(stores: Stores, snapshot: Snapshot) -> None:
    """Lose a snapshot to pressure: what stays unused ages against its value."""
    stores.values.evicted(density(stores, snapshot))
    stores.counters.host_evictions += 1
    forget(stores, snapshot)


def forget(stores: Stores, snapshot: Snapshot) -> None:
    """Remove a snapshot and all that only it needed."""
    pressure = stores.counters.pressure
    stores.tree.detach(snapshot)
    stores.images.release(snapshot.image)
    pressure.checkpoints_dropped += 1
    if snapshot.lineage == SHARED:
        pressure.shared_owners_evicted += 1
        return
    left = stores.lineages[snapshot.lineage] - 1
    if left:
        stores.lineages[snapshot.lineage] = left
        return
    del stores.lineages[snapshot.lineage]
    pressure.private_owners_evicted += 1
    stores.counters.growth.session_erasures_eviction += stores.sessions.forget(snapshot.lineage)


def _slabs_of(stores: Stores, snapshot: Snapshot) -> tuple[int, int]:
    """(slabs that a copy of a snapshot to the host would still need, slabs that it has there)."""
    handles = np.concatenate((snapshot.tail_page, snapshot.anchored.path_pages()))
    on_host = int((stores.pages.host[stores.pages.ids(handles)] != NOWHERE).sum())
    per_image, image_on_host = stores.images.slabs_per_image, snapshot.image.slabs is not None
    needs = len(handles) - on_host + per_image * (not image_on_host)
    return needs, on_host + per_image * image_on_host


def _audit(stores: Stores, lost: list[tuple[int, int, int]], free_slabs: int) -> None:
    """Count conversations that were lost though the host had room for what they still needed there; there are none."""
    pressure = stores.counters.pressure
    for lineage, needs, had in lost:
        if lineage == SHARED or lineage in stores.lineages:
            continue
        pressure.private_eviction_checks += 1
        pressure.private_evictions_demotable += free_slabs > 0
        fits = 0 < needs <= free_slabs - had
        pressure.evictions_with_victim_room += fits
        pressure.evictions_demote_possible += fits
