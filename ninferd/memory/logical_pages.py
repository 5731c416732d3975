"""Logical pages: 64 positions of one sequence, wherever their bytes are (spec/memory §2.4).

A logical page may have a device replica, a host replica, or both. Everything is a column of numbers, so that the
6,250 pages of a 400k-token conversation are handled by a few array operations. A handle is ``generation << 32 | id``;
one that outlived its page is refused.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import Slabs
from ninferd.memory.page_columns import NOWHERE, Handles, PageColumns
from ninferd.memory.pages import PageIds, PageReservation


class LogicalPages(PageColumns):
    """All logical pages over one device pool and one pool of host slabs.

    ``refs`` counts the address spaces and snapshots that name a page, ``active`` those among them that run. A page
    without references goes as soon as no copy reads or writes it. All methods take arrays of handles and raise
    InvariantError if a precondition fails for any of them.
    """

    def create(self, pages: int, reservation: PageReservation, after: int | None = None) -> Handles:
        """Pages to be written by one running sequence, on device pages of its reservation."""
        ids = self._allocate(pages)
        self.device[ids] = self.pool.materialize(reservation, pages, after)
        self.refs[ids] = self.active[ids] = 1
        self.writer[ids] = True
        return ids | self._generation[ids] << 32

    def commit_columns(self, handles: Handles, columns: int) -> None:
        """The writer committed the first ``columns`` positions of these pages."""
        ids = self.ids(handles)
        self._require(self.writer[ids], "columns are committed by the writer")
        if columns > PAGE_TOKENS or (self.columns[ids] > columns).any():
            raise InvariantError(f"committed columns only grow, to {PAGE_TOKENS} at most; got {columns}")
        self.columns[ids] = columns

    def freeze(self, handles: Handles) -> None:
        """End of writing: what is committed is immutable from now on."""
        ids = self.ids(handles)
        self._require(self.writer[ids], "only a page that is written can be frozen")
        self.writer[ids] = False
        self.protected[ids] = self.columns[ids]

    def truncate(self, handles: Handles, columns: int) -> None:
        """Give up committed positions from ``columns`` on; a host replica, if it could exist, would be stale."""
        ids = self.ids(handles)
        self._require(
            self.writer[ids] & (self.refs[ids] == 1) & (self.host[ids] == NOWHERE) & (self.protected[ids] <= columns),
            "only an unshared page with a writer can be truncated, above what is protected",
        )
        self.columns[ids] = np.minimum(self.columns[ids], columns)
        self.epoch[ids] += 1

    def share(self, handles: Handles) -> None:
        """One more reference; nobody writes a shared page."""
        ids = self.ids(handles)
        self._require(~self.writer[ids], "a page that is written cannot be shared")
        self.refs[ids] += 1

    def activate(self, handles: Handles) -> None:
        """One of the references belongs to a running sequence: the device replica must stay."""
        ids = self.ids(handles)
        self._require(
            (self.device[ids] != NOWHERE) & (self.active[ids] < self.refs[ids]),
            "an active page is referenced and on the device",
        )
        self.active[ids] += 1

    def deactivate(self, handles: Handles) -> None:
        """The running sequence lets go; its reference stays."""
        ids = self.ids(handles)
        self._require((self.active[ids] > 0) & ~self.writer[ids], "a page is frozen before its sequence lets go")
        self.active[ids] -= 1

    def release(self, handles: Handles) -> None:
        """Drop one reference each; pages without any are freed once no copy needs them."""
        ids = self.ids(handles)
        self._require(self.refs[ids] > self.active[ids], "an active reference must be deactivated before its release")
        self.refs[ids] -= 1
        self._reap(ids)

    def abandon(self, handles: Handles) -> None:
        """Free pages that their writer leaves unpublished."""
        ids = self.ids(handles)
        self._require(self.writer[ids] & (self.refs[ids] == 1), "only a private page can be abandoned")
        self.writer[ids] = False
        self.refs[ids] = self.active[ids] = 0
        self._reap(ids)

    def pin(self, handles: Handles) -> None:
        """A plan or a copy will read a replica: none of them may be dropped."""
        ids = self.ids(handles)
        self._require(~self.writer[ids], "a page that is written has no content to pin")
        self.pins[ids] += 1

    def unpin(self, handles: Handles) -> None:
        """The reader is done."""
        ids = self.ids(handles)
        self._require(self.pins[ids] > 0, "unpinned more often than pinned")
        self.pins[ids] -= 1
        self._reap(ids)

    def start_restore(self, handles: Handles, reservation: PageReservation) -> tuple[Slabs, PageIds]:
        """Destinations for pages that are only on the host: (source slabs, device pages). Pins until it ends."""
        ids = self.ids(handles)
        self._require(
            (self.device[ids] == NOWHERE) & (self.pending_device[ids] == NOWHERE) & self.current(ids),
            "only a page whose sole replica is a current host copy can be restored",
        )
        pages = self.pool.materialize(reservation, len(ids))
        self.pending_device[ids] = pages
        self.pins[ids] += 1
        return self.host[ids], pages

    def end_restore(self, handles: Handles, *, landed: bool) -> None:
        """The copy is complete, or failed and its destinations are free again."""
        ids = self.ids(handles)
        self._require(self.pending_device[ids] != NOWHERE, "no restore is in flight")
        if landed:
            self.device[ids] = self.pending_device[ids]
        else:
            self.pool.release(self.pending_device[ids])
        self.pending_device[ids] = NOWHERE
        self.unpin(handles)

    def start_spill(self, handles: Handles, slabs: Slabs) -> PageIds:
        """``slabs`` become the host replicas; device pages to copy from, int32. Pins until it ends."""
        ids = self.ids(handles)
        self._require(
            (self.device[ids] != NOWHERE)
            & ~self.writer[ids]
            & (self.host[ids] == NOWHERE)
            & (self.pending_host[ids] == NOWHERE),
            "only an immutable page that is nowhere but on the device can be spilled",
        )
        self.pending_host[ids] = slabs
        self.pins[ids] += 1
        return self.device[ids]

    def end_spill(self, handles: Handles, *, landed: bool) -> None:
        """The copy is complete, or failed and its slabs are free again."""
        ids = self.ids(handles)
        self._require(self.pending_host[ids] != NOWHERE, "no spill is in flight")
        if landed:
            self.host[ids] = self.pending_host[ids]
            self.host_epoch[ids] = self.epoch[ids]
            self.host_columns[ids] = self.columns[ids]
        else:
            self.slabs.give(self.pending_host[ids])
        self.pending_host[ids] = NOWHERE
        self.unpin(handles)

    def drop_device(self, handles: Handles) -> None:
        """Free device replicas of pages that live on on the host."""
        ids = self.ids(handles)
        self._require(
            (self.device[ids] != NOWHERE) & self.current(ids) & (self.active[ids] == 0) & (self.pins[ids] == 0),
            "only an idle device replica with a current host copy can be dropped",
        )
        self.pool.release(self.device[ids])
        self.device[ids] = NOWHERE

    def drop_host(self, handles: Handles) -> None:
        """Free host replicas of pages that live on on the device."""
        ids = self.ids(handles)
        self._require(
            (self.host[ids] != NOWHERE) & (self.device[ids] != NOWHERE) & (self.pins[ids] == 0),
            "only an idle host replica of a page on the device can be dropped",
        )
        self.slabs.give(self.host[ids])
        self.host[ids] = NOWHERE

    def take_over_device(self, handles: Handles) -> Handles:
        """New written pages on the device replicas of these, which keep only their host copies; nothing is copied."""
        ids = self.ids(handles)
        pages, columns = self.device[ids], self.columns[ids]
        self._require(
            (pages != NOWHERE) & self.current(ids) & (self.active[ids] == 0) & (self.pins[ids] == 0),
            "only an idle device replica with a current host copy can be taken over",
        )
        self.device[ids] = NOWHERE
        taken = self._allocate(len(ids))
        self.device[taken], self.columns[taken] = pages, columns
        self.refs[taken] = self.active[taken] = 1
        self.writer[taken] = True
        return taken | self._generation[taken] << 32
