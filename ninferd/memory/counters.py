"""Monotone counters of the memory system under their public names (spec/memory §8, Appendix D).

Names that belong to the planner of earlier engines, and have no event in this mechanism, stay: they read zero, as
``docs/memory.md`` says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ninferd.memory.snapshots import SnapshotKind


@dataclass
class CacheReuse:
    """Group ``cache_reuse``: exactly one selection per admitted request."""

    root_selections: int = 0
    private_endpoint_selections: int = 0
    private_turn_closure_selections: int = 0
    private_response_replay_selections: int = 0
    private_long_anchor_selections: int = 0
    shared_stable_prefix_selections: int = 0
    reused_prompt_tokens: int = 0
    last_selected_frontier_tokens: int = 0  # gauge
    historical_fork_hits: int = 0

    def select(self, kind: SnapshotKind | None, frontier: int) -> None:
        """A request was admitted from a snapshot of ``kind``, or from nothing."""
        name = f"{reuse_path(kind)}_selections"
        setattr(self, name, getattr(self, name) + 1)
        self.reused_prompt_tokens += frontier
        self.last_selected_frontier_tokens = frontier


@dataclass
class KvTransfers:
    """Group ``kv_transfers``; a page of the backend pool travels with its main page."""

    main_kv_d2h_pages: int = 0
    main_kv_d2h_bytes: int = 0
    main_kv_d2h_seconds: float = 0.0
    main_kv_h2d_pages: int = 0
    main_kv_h2d_bytes: int = 0
    main_kv_h2d_seconds: float = 0.0
    main_kv_d2d_pages: int = 0
    main_kv_d2d_bytes: int = 0
    main_kv_d2d_seconds: float = 0.0
    backend_kv_d2h_pages: int = 0
    backend_kv_d2h_bytes: int = 0
    backend_kv_d2h_seconds: float = 0.0
    backend_kv_h2d_pages: int = 0
    backend_kv_h2d_bytes: int = 0
    backend_kv_h2d_seconds: float = 0.0
    backend_kv_d2d_pages: int = 0
    backend_kv_d2d_bytes: int = 0
    backend_kv_d2d_seconds: float = 0.0


@dataclass
class StateTransfers:
    """Group ``state_transfers``."""

    state_d2h_count: int = 0
    state_d2h_bytes: int = 0
    state_d2h_seconds: float = 0.0
    state_h2d_count: int = 0
    state_h2d_bytes: int = 0
    state_h2d_seconds: float = 0.0
    state_d2d_count: int = 0
    state_d2d_bytes: int = 0
    state_d2d_seconds: float = 0.0
    state_moves: int = 0
    state_forks: int = 0
    state_restores: int = 0


@dataclass
class Pressure:
    """Counters of group ``pressure``; its gauges are added when a snapshot is made."""

    spill_pages: int = 0
    partial_tail_cow_pages: int = 0
    private_owners_degraded: int = 0
    private_owners_demoted: int = 0
    private_owners_demoted_kv: int = 0
    private_owners_demoted_kv_only: int = 0
    private_owners_evicted: int = 0
    shared_owners_degraded: int = 0
    shared_owners_evicted: int = 0
    shared_owners_replaced: int = 0
    private_evictions_demotable: int = 0
    evictions_with_victim_room: int = 0
    evictions_demote_possible: int = 0
    private_eviction_checks: int = 0
    options: int = 0
    demote_options: int = 0
    options_refused_no_kv: int = 0
    demote_option_refused_no_state_deficit: int = 0
    successor_calls: int = 0
    successors_with_option: int = 0
    demote_option_refused_precondition: int = 0
    options_refused_active_lanes: int = 0
    options_refused_evicting_current: int = 0
    capture_skips_transaction_or_fork: int = 0
    capture_skips_cancelled: int = 0
    capture_skips_nothing_to_publish: int = 0
    capture_skips_stale_pressure_plan: int = 0
    capture_skips_not_feasible_no_pressure: int = 0
    publication_cell_losses: int = 0
    publication_cell_probes: int = 0
    demand_bits_selected: int = 0
    demand_bits_resident: int = 0
    demand_bits_considered: int = 0
    publication_cell_at_risk_runs: int = 0
    goal_blocked_cell_only: int = 0
    goal_blocked_other: int = 0
    publication_cell_veto_goals: int = 0
    publication_cell_veto_other: int = 0
    publication_cell_veto_reuse: int = 0
    checkpoints_dropped: int = 0
    searches: int = 0
    search_budget_exhaustions: int = 0
    target_arena_truncations: int = 0
    maximal_fallback_selections: int = 0
    actual_context_transfer_seconds: float = 0.0


@dataclass
class HostGrowth:
    """Counters of group ``memory`` about reaching the ceiling of the host pool from a plan, and about sessions."""

    session_erasures_eviction: int = 0
    session_erasures_consume: int = 0
    catalog_cell_clears_terminal: int = 0
    catalog_cell_clears_action: int = 0
    catalog_cell_clears_cancelled: int = 0
    catalog_cell_clears_cleanup: int = 0
    catalog_cell_clears_rollback: int = 0
    host_state_pregrow_attempts: int = 0
    host_state_pregrows: int = 0
    host_state_pregrow_refusals: int = 0
    host_kv_pregrow_attempts: int = 0
    host_kv_pregrows: int = 0
    host_kv_pregrow_refusals: int = 0
    host_kv_pregrow_fragmented: int = 0
    host_kv_fit_pinned: int = 0
    host_kv_fit_growable: int = 0
    host_kv_fit_blocked: int = 0
    host_kv_blocked_checks: int = 0
    host_kv_blocked_max_bytes: int = 0
    host_kv_grows: int = 0
    host_kv_grow_refusals: int = 0


@dataclass
class Extras:
    """Ours, under ``x.``."""

    spill_attempted: int = 0
    spill_done: int = 0
    spill_skipped_host_blocked: int = 0
    restore_corrupt_dropped: int = 0
    prefetched_pages: int = 0


@dataclass
class MemoryCounters:
    """All groups."""

    active_captures_completed: int = 0
    active_captures_aborted: int = 0
    superseded: int = 0
    host_evictions: int = 0
    cache_reuse: CacheReuse = field(default_factory=CacheReuse)
    kv_transfers: KvTransfers = field(default_factory=KvTransfers)
    state_transfers: StateTransfers = field(default_factory=StateTransfers)
    pressure: Pressure = field(default_factory=Pressure)
    growth: HostGrowth = field(default_factory=HostGrowth)
    extras: Extras = field(default_factory=Extras)

    @property
    def admissions(self) -> int:
        """Admitted requests: the sum of the six selections."""
        return sum(value for name, value in asdict(self.cache_reuse).items() if name.endswith("_selections"))


def reuse_path(kind: SnapshotKind | None) -> str:
    """Public name of what a request resumed from, as request logs and statistics print it."""
    if kind is None:
        return "root"
    return kind if kind == "shared_stable_prefix" else f"private_{kind}"
