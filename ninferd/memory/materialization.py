"""From a plan to a running sequence: room is made, the prefix comes back, the state is put in place.

At most one admission is under way. What it will use is pinned from the moment it was planned, so there is nothing to
check again in between; it ends ready, or given up with everything as restorable as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.admission import Admitted, Source, continues, unpin
from ninferd.memory.copies import Landed, StateCopy, Transfer
from ninferd.memory.eviction import carry_out, evict
from ninferd.memory.flights import RestoreFlight
from ninferd.memory.host_slabs import Slabs
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.pages import PageIds
from ninferd.memory.publication import copy_of_page
from ninferd.memory.stores import Stores
from ninferd.memory.taps import TapRules, plan_taps
from ninferd.memory.tenant import Tenant

_NOTHING = np.zeros(0, np.int32)


@dataclass(eq=False)
class Materialization:
    """One admission under way. Its source was pinned by the plan."""

    stores: Stores
    tenant: Tenant
    admitted: Admitted
    rules: TapRules
    junction: int
    _restored: Handles = field(default_factory=lambda: NO_HANDLES)  # full pages that come back from the host
    _tail_held: bool = True
    _image_held: bool = True

    @property
    def source(self) -> Source:
        """Where the tenant starts from."""
        return self.admitted.source

    def begin(self) -> None:
        """Make room; go on at once unless something must be copied out first."""
        self.stores.pages.share(self.source.path)
        self.tenant.handles = self.source.path
        if not carry_out(self.stores, self.admitted.plan, self._moved):
            self._give_up()
        elif self.admitted.plan.moves:
            self._take_what_is_free()
        else:
            self._restore()

    def cancel(self) -> None:
        """End it as soon as no copy writes to its pages any more."""
        self.tenant.cancelled = True
        if self.tenant.phase == "moving":
            self._give_up()

    def _moved(self, landed: Landed) -> None:
        if self.tenant.phase != "moving":
            return  # cancelled; what was copied has two copies now
        stores, plan = self.stores, self.admitted.plan
        stores.pages.drop_device(stores.pages.droppable(plan.page_moves))
        for image in plan.image_moves:
            if image.droppable and not image.released:
                stores.images.drop_device(image)
        self._take_what_is_free()
        if landed.failed or self.tenant.reservation.remaining < self.source.pages or self._lacks_slot():
            self._give_up()
        else:
            self._restore()

    def _take_what_is_free(self) -> None:
        """Nobody else may take pages or a slot that the plan counts on."""
        pool, reservation = self.stores.pool, self.tenant.reservation
        more = pool.reserve(min(self.source.pages - reservation.remaining, pool.available))
        assert more is not None
        reservation.remaining, more.remaining = reservation.remaining + more.remaining, 0
        if self._lacks_slot():
            self.tenant.image = self.stores.images.acquire()

    def _lacks_slot(self) -> bool:
        return self.tenant.image is None and not self.source.moves_image

    def _restore(self) -> None:
        stores, tenant, source = self.stores, self.tenant, self.source
        self._take_what_is_free()
        tenant.phase = "restoring"
        self._restored = source.path[~stores.pages.on_device(source.path)]
        slabs, pages = stores.pages.start_restore(self._restored, tenant.reservation)
        tail_slabs, tail_pages = self._place_tail()
        states = self._place_state()
        flight = RestoreFlight(self._restored, len(tail_pages), len(states), self._landed)
        transfer = Transfer("h2d", np.concatenate((pages, tail_pages)), np.concatenate((slabs, tail_slabs)), states)
        if not (len(transfer.pages) or states):
            self._ready()
            return
        try:
            stores.flights[stores.copies.start(transfer)] = flight
        except MemoryError:
            stores.pages.end_restore(self._restored, landed=False)
            self._give_up()

    def _place_tail(self) -> tuple[Slabs, PageIds]:
        """A private page with the tokens behind the last full page; (slab, page) if it must come from the host."""
        stores, tenant, source = self.stores, self.tenant, self.source
        if source.snapshot is None or not len(source.tail):
            return _NOTHING, _NOTHING
        columns, pages = source.snapshot.frontier % PAGE_TOKENS, stores.pages
        slabs = placed = _NOTHING
        if source.moves_tail:
            pages.unpin(source.tail)
            self._tail_held = False
            private = pages.take_over_device(source.tail)
        elif pages.on_device(source.tail).all():
            private = copy_of_page(stores, source.tail, columns, tenant.reservation)
        else:
            private = pages.create(1, tenant.reservation)
            pages.commit_columns(private, columns)
            slabs, placed = pages.host[pages.ids(source.tail)], pages.device[pages.ids(private)]
        tenant.handles = np.concatenate((tenant.handles, private))
        return slabs, placed

    def _place_state(self) -> tuple[StateCopy, ...]:
        """The state at the frontier in the slot of the sequence; the copy to make if it must come from the host."""
        stores, tenant, snapshot = self.stores, self.tenant, self.source.snapshot
        if snapshot is None:
            stores.copies.reset_state(tenant.state_slot)
            return ()
        image = snapshot.image
        if self.source.moves_image:
            stores.images.unpin(image)
            self._image_held = False
            tenant.image = stores.images.take_over(image)
        elif image.on_device:
            stores.copies.copy_state(image.slot, tenant.state_slot)
            stores.count("d2d", 0, 1, 0.0)
        else:
            assert image.slabs is not None
            return (StateCopy(tenant.state_slot, image.slabs),)
        return ()

    def _landed(self, landed: Landed) -> None:
        self.stores.counters.pressure.actual_context_transfer_seconds += landed.seconds
        if landed.failed or landed.bad_slabs:
            bad = self._restored[~self.stores.pages.on_device(self._restored)]
            self._give_up()
            self._drop_what_is_broken(bad)
        elif self.tenant.cancelled:
            self._give_up()
        else:
            self._ready()

    def _drop_what_is_broken(self, bad: Handles) -> None:
        """Every snapshot that needs a page which did not arrive; at least the one that was asked for."""
        snapshot = self.source.snapshot
        assert snapshot is not None
        broken = {id(snapshot): snapshot}
        for segment in snapshot.anchored.path():
            if np.isin(segment.pages, bad).any():
                broken.update((id(each), each) for each in segment.subtree())
        for each in broken.values():
            if not each.pins:
                evict(self.stores, each)
        self.stores.counters.extras.restore_corrupt_dropped += 1

    def _ready(self) -> None:
        stores, tenant, source = self.stores, self.tenant, self.source
        stores.pages.activate(source.path)
        unpin(stores, source, tail=self._tail_held, image=self._image_held)
        tenant.phase = "ready"
        tenant.shared = len(source.path)
        tenant.frontier = tenant.reused_tokens
        snapshot, request = source.snapshot, tenant.request
        stores.counters.cache_reuse.select(None if snapshot is None else snapshot.kind, tenant.frontier)
        if snapshot is not None:
            self._count_hit()
            snapshot.hits += 1
            snapshot.superseded = False
            snapshot.age = stores.values.age
            stores.tree.touch(snapshot)
        if request.retain:
            tenant.taps = plan_taps(
                request.prompt,
                request.outline,
                tenant.frontier,
                self.rules,
                echoes=snapshot is not None and snapshot.kind == "endpoint",
                junction=self.junction,
            )

    def _count_hit(self) -> None:
        state, snapshot = self.stores.counters.state_transfers, self.source.snapshot
        assert snapshot is not None
        if not continues(self.tenant.request, snapshot):
            self.stores.counters.cache_reuse.historical_fork_hits += 1
        if self.source.moves_image:
            state.state_moves += 1
        elif snapshot.image.on_device:
            state.state_forks += 1
        else:
            state.state_restores += 1

    def _give_up(self) -> None:
        stores, tenant, source = self.stores, self.tenant, self.source
        private = tenant.handles[len(source.path) :]
        stores.pages.abandon(private)
        stores.pages.release(source.path)
        unpin(stores, source, tail=self._tail_held, image=self._image_held)
        stores.pool.cancel(tenant.reservation)
        if tenant.image is not None:
            stores.images.release(tenant.image)
            tenant.image = None
        tenant.handles = NO_HANDLES
        tenant.phase = "gone"
