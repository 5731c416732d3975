"""The memory system's part of ``/stats`` under the public names (spec/memory §8, Appendix D), as plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from heapq import nlargest

from ninferd.memory.snapshots import SHARED, Snapshot
from ninferd.memory.stores import Stores
from ninferd.memory.tenant import Tenant
from ninferd.memory.worth import exclusive

Value = int | float | str | bool | list[int]
Group = dict[str, Value]
TOP_UNITS = 8


def memory_stats(stores: Stores, running: Iterable[Tenant]) -> dict[str, Group]:
    """Groups by their dotted names. Sizes of the device and of the model are the engine's to add to ``memory``."""
    counters = stores.counters
    census, top = _census(stores, running)
    return {
        "cache_reuse": asdict(counters.cache_reuse),
        "kv_transfers": asdict(counters.kv_transfers),
        "state_transfers": asdict(counters.state_transfers),
        "pressure": _pressure(stores, running),
        "memory": _memory(stores),
        "host_kv": {
            "net_present": False,
            "net_entries": 0,
            "net_state_bytes": 0,
            "superseded": counters.superseded,
            "evictions": counters.host_evictions,
            "compactions": 0,
            "single_alloc_failures": 0,
            "top_units": top,
        },
        "host_kv.residency": {
            "occupied_bytes": _kv_bytes(stores),
            "capacity_bytes": stores.slabs.ceiling * stores.slabs.slab_bytes,
            "spilled_pages": counters.pressure.spill_pages,
            "owners_demoted_kv": counters.pressure.private_owners_demoted_kv,
            "owners_demoted_kv_only": counters.pressure.private_owners_demoted_kv_only,
        },
        **{f"host_kv.tier_census.{tier}": group for tier, group in census.items()},
        "x": {
            **asdict(counters.extras),
            "active_captures_completed": counters.active_captures_completed,
            "active_captures_aborted": counters.active_captures_aborted,
        },
    }


def _pressure(stores: Stores, running: Iterable[Tenant]) -> Group:
    pressure = stores.counters.pressure
    sources = [tenant.source for tenant in running if tenant.source is not None]
    return {
        **asdict(pressure),
        "device_main_kv_occupied_pages": stores.pool.allocated,
        "device_backend_kv_occupied_pages": stores.pool.allocated if stores.sizes.backend_page_bytes else 0,
        "device_state_occupied_slots": stores.images.capacity - stores.images.free,
        "host_kv_occupied_bytes": _kv_bytes(stores),
        "host_state_occupied_slots": stores.images.on_host,
        "owners_evicted_total": pressure.private_owners_evicted + pressure.shared_owners_evicted,
        "shared_active_references": sum(source.lineage == SHARED for source in sources),
    }


def _memory(stores: Stores) -> Group:
    slabs, grown = stores.slabs, stores.slabs.counters
    snapshots = list(stores.tree.snapshots())
    return {
        **asdict(stores.counters.growth),
        "host_kv_capacity_bytes": slabs.ceiling * slabs.slab_bytes,
        "host_kv_occupied_bytes": _kv_bytes(stores),
        "host_state_capacity_slots": slabs.ceiling // stores.images.slabs_per_image,
        "host_state_occupied_slots": stores.images.on_host,
        "private_catalog_capacity_cells": len(stores.lineages),  # there are as many as conversations
        "private_catalog_occupied_cells": len(stores.lineages),
        "session_index_capacity_cells": len(stores.sessions),
        "session_index_occupied_cells": len(stores.sessions),
        "host_state_checkpoints_reachable": sum(each.image.slabs is not None for each in snapshots),
        "host_state_checkpoints_unanchored": 0,
        "host_pinned_capacity_bytes": slabs.capacity * slabs.slab_bytes,
        "host_pinned_free_bytes": slabs.free * slabs.slab_bytes,
        "host_pinned_chunks": slabs.chunks,
        "host_pinned_largest_free_run_bytes": slabs.largest_free_run * slabs.slab_bytes,
        "host_pinned_growth_headroom_bytes": (slabs.obtainable() - slabs.free) * slabs.slab_bytes,
        "host_pinned_reserve_bytes": slabs.limits.reserve_bytes,
        "host_pinned_grows": grown.grows,
        "host_pinned_grow_refusals": grown.grow_refusals,
        "host_pinned_growth_policy_refusals": grown.policy_refusals,
        "host_pinned_growth_pin_failures": grown.pin_failures,
        "host_pinned_allocation_refusals": grown.refusals,
        "host_pinned_allocation_speculative_refusals": 0,
        "host_pinned_allocation_ram_refusals": grown.ram_refusals,
        "host_pinned_allocation_post_grow_failures": grown.post_grow_failures,
        "host_pinned_allocation_fragmented_misses": 0,  # any free slabs serve any request
        "host_pinned_last_veto": grown.last_veto,
        "host_pinned_last_wanted_bytes": grown.last_wanted_bytes,
        "host_pinned_last_veto_mem_available_bytes": grown.last_available_bytes,
    }


def _kv_bytes(stores: Stores) -> int:
    return (stores.slabs.taken - stores.images.held_slabs()) * stores.slabs.slab_bytes


def _census(stores: Stores, running: Iterable[Tenant]) -> tuple[dict[str, Group], list[int]]:
    """Snapshots by how likely they are to come back, and the sizes of the largest, in bytes of all their copies."""
    in_use = {id(tenant.source) for tenant in running}
    entries = dict.fromkeys(("dead", "live", "idle", "active"), 0)
    sizes = dict.fromkeys(entries, 0)
    units = []
    for snapshot in stores.tree.snapshots():
        tier = "active" if id(snapshot) in in_use else _tier(stores, snapshot)
        pages = len(snapshot.tail_page) + sum(len(segment.pages) for segment in exclusive(snapshot))
        size_bytes = (pages + stores.images.slabs_per_image) * stores.slabs.slab_bytes
        entries[tier] += 1
        sizes[tier] += size_bytes
        units.append(size_bytes)
    return {t: {"entries": entries[t], "bytes": sizes[t]} for t in entries}, nlargest(TOP_UNITS, units)


def _tier(stores: Stores, snapshot: Snapshot) -> str:
    tiers = {"disposable": "dead", "live_session": "live", "recent_private": "idle"}
    return tiers[stores.sessions.retention(snapshot)]
