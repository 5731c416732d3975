"""The memory of an engine: what a request may reuse, what it holds while it runs, and what stays when it ends.

Synchronous and single-threaded: the engine's loop is the only mutator. A request is admitted, becomes ready (at once,
or when copies have landed), maps pages, commits positions, is tapped at planned positions, and finishes, is cancelled
or fails. Bytes are moved by ``Copies``; everything here is bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.admission import Refused, continues, impossible, plan_admission, sources
from ninferd.memory.copies import Copies
from ninferd.memory.errors import InvariantError
from ninferd.memory.flights import poll
from ninferd.memory.host_budget import HostLimits, HostMemory, read_host_memory
from ninferd.memory.host_slabs import CHUNK_BYTES, HostSlabs, PinnedBackend
from ninferd.memory.identity import IdentityTag
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.materialization import Materialization
from ninferd.memory.pages import PageIds, PagePool
from ninferd.memory.prefetch import prefetch
from ninferd.memory.prefix_tree import PrefixTree
from ninferd.memory.publication import capture, publish_endpoint, write_through
from ninferd.memory.segment import BlockDigest
from ninferd.memory.snapshots import Match, Snapshot
from ninferd.memory.state_images import StateImages
from ninferd.memory.stats import Group, memory_stats
from ninferd.memory.stores import BundleSizes, Stores
from ninferd.memory.taps import MAX_TAPS, MAX_TAPS_WITHOUT_HOST, TapRules
from ninferd.memory.tenant import Request, Tenant
from ninferd.memory.value import CostModel

_NO_MATCH = Match(0, 0, (), np.zeros(0, np.int64))


@dataclass(frozen=True)
class MemoryConfig:
    """Sizes of the pools. ``state_slots`` counts running sequences and retained images together."""

    sizes: BundleSizes
    tag: IdentityTag
    device_pages: int
    state_slots: int
    host: HostLimits
    chunk_tokens: int
    host_chunk_bytes: int = CHUNK_BYTES
    costs: CostModel = field(default_factory=CostModel)


class MemorySystem:
    """Facade over the stores; one per engine."""

    def __init__(
        self,
        config: MemoryConfig,
        copies: Copies,
        pinned: PinnedBackend,
        read_host: Callable[[], HostMemory | None] = read_host_memory,
        digest: BlockDigest = hash,
    ) -> None:
        pool = PagePool(config.device_pages)
        slabs = HostSlabs(config.sizes.slab_bytes, config.host, read_host, pinned, config.host_chunk_bytes)
        pages = LogicalPages(pool, slabs)
        self.stores = Stores(
            sizes=config.sizes,
            pool=pool,
            slabs=slabs,
            pages=pages,
            images=StateImages(config.state_slots, slabs, config.sizes.slabs_per_image),
            tree=PrefixTree(config.tag, pages, digest),
            copies=copies,
            costs=config.costs,
        )
        self._rules = TapRules(config.chunk_tokens, MAX_TAPS if slabs.ceiling else MAX_TAPS_WITHOUT_HOST)
        self._under_way: Materialization | None = None
        self._running: list[Tenant] = []
        self._admitted = 0
        self._lineages = 0

    def admit(self, request: Request) -> Tenant | Refused:
        """Reserve all that ``request`` may ever use, from the cheapest source that fits; or say why not now.

        A tenant that is not ``ready`` becomes so, or ``gone``, in a later ``advance``. ``gone`` without having been
        cancelled: a copy failed, admit the request again.
        """
        stores = self.stores
        refused = impossible(stores, request)
        if refused is not None:
            return refused
        if self._under_way is not None:
            return Refused("needs_transfer", "another admission is under way")
        match = stores.tree.match(request.prompt) if request.retain else _NO_MATCH
        admitted = plan_admission(stores, sources(stores, request, match))
        if isinstance(admitted, Refused):
            return admitted
        self._admitted += 1
        reservation = stores.pool.reserve(0)
        assert reservation is not None
        snapshot = admitted.source.snapshot
        tenant = Tenant(request, self._admitted, snapshot, self._lineage_of(request, snapshot), reservation)
        start = Materialization(stores, tenant, admitted, self._rules, match.blocks * PAGE_TOKENS)
        start.begin()
        self._under_way = start
        self._running.append(tenant)
        self._settle()
        return tenant

    def prefetch(self, request: Request) -> int:
        """Bring back pages for the blocked head of the queue, if no admission is under way; how many were started."""
        if self._under_way is not None or not request.retain:
            return 0
        return prefetch(self.stores, request.prompt)

    def advance(self) -> list[Tenant]:
        """Settle copies that have landed; the tenants that became ready or gone by it. Never waits."""
        poll(self.stores)
        return self._settle()

    def map(self, tenant: Tenant, end: int) -> PageIds:
        """Map pages up to position ``end``; the new physical pages, int32, to publish in its page table."""
        return tenant.ensure_mapped(self.stores.pages, end)

    def commit(self, tenant: Tenant, frontier: int) -> Snapshot | None:
        """Positions before ``frontier`` are computed and final; takes the tap that is planned there, if any."""
        tenant.commit(frontier)
        while tenant.taps and tenant.taps[0].position <= frontier:
            tap, tenant.taps = tenant.taps[0], tenant.taps[1:]
            if tap.position == frontier:
                return capture(self.stores, tenant, tap.kind)
        return None

    def finish(self, tenant: Tenant) -> None:
        """It ended, or was cancelled while it ran: what it committed stays, and is copied to the host."""
        published = publish_endpoint(self.stores, tenant) if tenant.request.retain and tenant.frontier else None
        self._release(tenant)
        if published is not None:
            write_through(self.stores, published)

    def cancel(self, tenant: Tenant) -> None:
        """Like ``finish`` if it runs; an admission under way ends when no copy writes to its pages any more."""
        if tenant.phase == "ready":
            self.finish(tenant)
        elif self._under_way is not None and self._under_way.tenant is tenant:
            self._under_way.cancel()
            self._settle()

    def fail(self, tenant: Tenant) -> PageIds:
        """Something went wrong in it: nothing of it is kept but earlier taps. The physical pages to scrub."""
        if tenant.phase != "ready":
            self.cancel(tenant)
            return np.zeros(0, np.int32)
        pages = self.stores.pages
        ids = pages.ids(tenant.handles)
        suspect: PageIds = pages.device[ids][pages.refs[ids] == 1].copy()
        self._release(tenant)
        return suspect

    def trim_host(self) -> int:
        """Give whole free chunks at the end of the host pool back to the system; bytes. Not on a latency path."""
        return self.stores.slabs.shrink_idle()

    def stats(self) -> dict[str, Group]:
        """Groups of ``/stats`` by their dotted names."""
        return memory_stats(self.stores, self._running)

    def check(self) -> None:
        """Raise InvariantError unless all stores agree with each other and with the running sequences."""
        stores = self.stores
        for store in (stores.pool, stores.slabs, stores.pages, stores.images, stores.tree):
            store.check()
        self._check_counts()
        if not stores.flights and self._under_way is None and stores.pages.pins.any():
            raise InvariantError("a page is pinned while nothing is under way")
        if sum(t.phase == "ready" for t in self._running) + (self._under_way is not None) != len(self._running):
            raise InvariantError("a sequence that neither runs nor is under way")

    def _check_counts(self) -> None:
        stores = self.stores
        pages = stores.pages
        promised = sum(tenant.reservation.remaining for tenant in self._running)
        if promised != stores.pool.reserved:
            raise InvariantError(f"sequences hold {promised} reserved pages, the pool counts {stores.pool.reserved}")
        refs, active = np.zeros_like(pages.refs), np.zeros_like(pages.active)
        for segment in stores.tree.segments():
            refs[pages.ids(segment.pages)] += 1
        lineages: dict[int, int] = {}
        for snapshot in stores.tree.snapshots():
            refs[pages.ids(snapshot.tail_page)] += 1
            if snapshot.lineage:
                lineages[snapshot.lineage] = lineages.get(snapshot.lineage, 0) + 1
        for tenant in self._running:
            refs[pages.ids(tenant.handles)] += 1
            active[pages.ids(tenant.handles)] += tenant.phase == "ready"
        under_way = self._under_way
        if under_way is not None:  # its private pages are active before it is ready
            active[pages.ids(under_way.tenant.handles[len(under_way.source.path) :])] += 1
        if not (np.array_equal(refs, pages.refs) and np.array_equal(active, pages.active)):
            raise InvariantError("references of pages do not add up")
        if lineages != stores.lineages:
            raise InvariantError("snapshots of conversations do not add up")
        held = int((pages.host >= 0).sum() + (pages.pending_host >= 0).sum()) + stores.images.held_slabs()
        if held != stores.slabs.taken:
            raise InvariantError(f"{held} host slabs are named, {stores.slabs.taken} are taken")

    def _settle(self) -> list[Tenant]:
        if self._under_way is None or self._under_way.tenant.phase not in ("ready", "gone"):
            return []
        tenant, self._under_way = self._under_way.tenant, None
        if tenant.phase == "gone":
            self._running.remove(tenant)
        return [tenant]

    def _lineage_of(self, request: Request, source: Snapshot | None) -> int:
        if source is not None and continues(request, source):
            return source.lineage
        self._lineages += 1
        return self._lineages

    def _release(self, tenant: Tenant) -> None:
        stores = self.stores
        kept, private = tenant.handles[: tenant.shared], tenant.handles[tenant.shared :]
        stores.pages.deactivate(kept)
        stores.pages.release(kept)
        stores.pages.abandon(private)
        stores.pool.cancel(tenant.reservation)
        if tenant.image is not None:
            stores.images.release(tenant.image)
            tenant.image = None
        tenant.phase = "gone"
        self._running.remove(tenant)
