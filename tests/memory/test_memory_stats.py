"""Public names of the statistics (Appendix D of the specification), and that each of them can move."""

from __future__ import annotations

from dataclasses import replace

from ninferd.memory.stores import BundleSizes
from ninferd.memory.taps import PromptOutline
from tests.memory.hash_engine import SLAB, HashEngine, low_memory
from tests.memory.traces import Trace

NAMES = {
    "cache_reuse": """root_selections private_endpoint_selections private_turn_closure_selections
        private_response_replay_selections private_long_anchor_selections shared_stable_prefix_selections
        reused_prompt_tokens last_selected_frontier_tokens historical_fork_hits""",
    "kv_transfers": """main_kv_d2h_pages main_kv_d2h_bytes main_kv_d2h_seconds main_kv_h2d_pages main_kv_h2d_bytes
        main_kv_h2d_seconds main_kv_d2d_pages main_kv_d2d_bytes main_kv_d2d_seconds backend_kv_d2h_pages
        backend_kv_d2h_bytes backend_kv_d2h_seconds backend_kv_h2d_pages backend_kv_h2d_bytes backend_kv_h2d_seconds
        backend_kv_d2d_pages backend_kv_d2d_bytes backend_kv_d2d_seconds""",
    "state_transfers": """state_d2h_count state_d2h_bytes state_d2h_seconds state_h2d_count state_h2d_bytes
        state_h2d_seconds state_d2d_count state_d2d_bytes state_d2d_seconds state_moves state_forks state_restores""",
    "pressure": """device_main_kv_occupied_pages device_backend_kv_occupied_pages device_state_occupied_slots
        host_kv_occupied_bytes host_state_occupied_slots spill_pages partial_tail_cow_pages private_owners_degraded
        private_owners_demoted private_owners_demoted_kv private_owners_demoted_kv_only private_owners_evicted
        shared_owners_degraded shared_owners_evicted shared_owners_replaced owners_evicted_total
        private_evictions_demotable evictions_with_victim_room evictions_demote_possible private_eviction_checks options
        demote_options options_refused_no_kv demote_option_refused_no_state_deficit successor_calls
        successors_with_option demote_option_refused_precondition options_refused_active_lanes
        options_refused_evicting_current capture_skips_transaction_or_fork capture_skips_cancelled
        capture_skips_nothing_to_publish capture_skips_stale_pressure_plan capture_skips_not_feasible_no_pressure
        publication_cell_losses publication_cell_probes demand_bits_selected demand_bits_resident demand_bits_considered
        publication_cell_at_risk_runs goal_blocked_cell_only goal_blocked_other publication_cell_veto_goals
        publication_cell_veto_other publication_cell_veto_reuse checkpoints_dropped searches search_budget_exhaustions
        target_arena_truncations maximal_fallback_selections shared_active_references
        actual_context_transfer_seconds""",
    "memory": """host_kv_capacity_bytes host_kv_occupied_bytes host_state_capacity_slots host_state_occupied_slots
        private_catalog_capacity_cells private_catalog_occupied_cells catalog_cell_clears_terminal
        catalog_cell_clears_action catalog_cell_clears_cancelled catalog_cell_clears_cleanup
        catalog_cell_clears_rollback session_erasures_eviction session_erasures_consume session_index_capacity_cells
        session_index_occupied_cells host_state_checkpoints_reachable host_state_checkpoints_unanchored
        host_pinned_capacity_bytes host_pinned_free_bytes host_pinned_chunks host_pinned_grows
        host_pinned_grow_refusals host_pinned_largest_free_run_bytes host_pinned_growth_headroom_bytes
        host_pinned_growth_policy_refusals host_pinned_growth_pin_failures host_pinned_allocation_refusals
        host_pinned_allocation_speculative_refusals host_pinned_allocation_ram_refusals
        host_pinned_allocation_post_grow_failures host_pinned_allocation_fragmented_misses host_pinned_reserve_bytes
        host_pinned_last_veto host_pinned_last_wanted_bytes host_pinned_last_veto_mem_available_bytes
        host_state_pregrow_attempts host_state_pregrows host_state_pregrow_refusals host_kv_pregrow_attempts
        host_kv_pregrow_refusals host_kv_pregrow_fragmented host_kv_pregrows host_kv_fit_pinned host_kv_fit_growable
        host_kv_fit_blocked host_kv_blocked_checks host_kv_blocked_max_bytes host_kv_grows host_kv_grow_refusals""",
    "host_kv": """net_present net_entries net_state_bytes superseded evictions compactions single_alloc_failures
        top_units""",
    "host_kv.residency": "occupied_bytes capacity_bytes spilled_pages owners_demoted_kv owners_demoted_kv_only",
    "host_kv.tier_census.dead": "entries bytes",
    "host_kv.tier_census.live": "entries bytes",
    "host_kv.tier_census.idle": "entries bytes",
    "host_kv.tier_census.active": "entries bytes",
}

# Events of mechanisms that this one does not have (docs/memory.md); they stay zero.
NEVER = {
    "pressure": """shared_owners_replaced evictions_with_victim_room evictions_demote_possible options demote_options
        options_refused_no_kv demote_option_refused_no_state_deficit successor_calls successors_with_option
        demote_option_refused_precondition options_refused_active_lanes options_refused_evicting_current
        capture_skips_cancelled capture_skips_stale_pressure_plan publication_cell_losses publication_cell_probes
        demand_bits_selected demand_bits_resident demand_bits_considered publication_cell_at_risk_runs
        goal_blocked_cell_only goal_blocked_other publication_cell_veto_goals publication_cell_veto_other
        publication_cell_veto_reuse search_budget_exhaustions target_arena_truncations maximal_fallback_selections""",
    "memory": """catalog_cell_clears_terminal catalog_cell_clears_action catalog_cell_clears_cancelled
        catalog_cell_clears_cleanup catalog_cell_clears_rollback session_erasures_consume
        host_state_checkpoints_unanchored host_pinned_allocation_speculative_refusals
        host_pinned_allocation_post_grow_failures host_pinned_allocation_fragmented_misses host_state_pregrow_attempts
        host_state_pregrows host_state_pregrow_refusals host_kv_pregrow_fragmented""",
    "host_kv": "net_present net_entries net_state_bytes compactions single_alloc_failures",
    "kv_transfers": "main_kv_d2d_seconds backend_kv_d2d_seconds",  # on the compute stream: not timed
    "state_transfers": "state_d2d_seconds",
}


def test_every_public_name_is_there() -> None:
    groups = HashEngine().memory.stats()
    assert {name: set(groups[name]) for name in NAMES} == {name: set(keys.split()) for name, keys in NAMES.items()}


def test_every_counter_moves_except_those_that_cannot() -> None:
    moved: dict[str, set[str]] = {name: set() for name in NAMES}

    def look(engine: HashEngine) -> None:
        for name, group in engine.memory.stats().items():
            moved.get(name, set()).update(key for key, value in group.items() if value)

    for seed in range(12):
        trace = Trace(seed)
        for act in [trace.submit, trace.step, trace.step, trace.step, trace.cancel] * 12:
            act()
        look(trace.engine)
    look(_busy())
    look(_twins())
    look(_crowded())
    look(_starved())
    still = {f"{name}.{key}" for name, keys in NAMES.items() for key in set(keys.split()) - moved[name]}
    never = {f"{name}.{key}" for name, keys in NEVER.items() for key in keys.split()}
    assert (sorted(still - never), sorted(never - still)) == ([], [])


def _busy() -> HashEngine:
    """Long anchors, a running shared prefix, restores, taps that are known already."""
    sizes = BundleSizes(4000, 96, 2 * SLAB)
    engine = HashEngine(pages=110, host_slabs=600, sizes=sizes)
    ids = [n % 251 for n in range(6000)]
    outline = PromptOutline(client_markers=(128,))
    engine.run(ids, 1, "a", outline=outline)
    engine.run([7] * 6900, 1, "b")
    engine.run([*ids[:1900], *([3] * 40)], 1, "a")
    closed = PromptOutline(opener=200)
    for word, outline in ((5, closed), (6, replace(closed, opener_kind="response_replay"))):
        engine.run([word] * 300, 30, outline=outline)
        engine.run([*([word] * 200), 1], 1)
    engine.submit([*ids[:128], *([9] * 80)], 40, "c", outline=outline)
    for _ in range(5):
        engine.step()
    return engine


def _twins() -> HashEngine:
    """Two of the same prompt at once: the second finds the tap of the first at its own."""
    engine = HashEngine(chunk=64)
    for _ in range(2):
        engine.submit([5] * 300, 3, outline=PromptOutline(opener=200))
    engine.drain()
    return engine


def _crowded() -> HashEngine:
    """A tap without any room, while a copy is under way."""
    engine = HashEngine(retained_images=0, host_slabs=4, chunk=2048)
    engine.device.hold = True
    engine.run_until_ended([1] * 100, 1)
    engine.submit([2] * 300, 1, outline=PromptOutline(opener=200))
    for _ in range(3):
        engine.step()
    return engine


def _starved() -> HashEngine:
    """A host that refuses to grow, fails to pin, and is full."""
    engine = HashEngine(host_slabs=64, start_full=False, chunk=2048)
    engine.host.memory = low_memory()
    for n in range(3):
        engine.run([n] * 1000, 1, f"s{n}")
    assert engine.stores.slabs.take(60) is None
    engine.host.memory = None
    engine.pinned.failures = 1
    engine.host.memory = type(low_memory())(1 << 40, None)
    engine.run([8] * 1000, 1, "t")
    engine.run([9] * 1000, 1, "u")
    return engine
