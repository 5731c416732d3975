"""Logical pages: 64 positions of one sequence, wherever their bytes are (spec/memory §2.4).

A logical page may have a device replica, a host replica, or both. Everything is a column of numbers, so that the
6,250 pages of a 400k-token conversation are handled by a few array operations. A handle is ``generation << 32 | id``;
one that outlived its page is refused.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import HostSlabs, Slabs
from ninferd.memory.pages import PageIds, PagePool, PageReservation

Handles = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]

NOWHERE: Final = -1
NO_HANDLES: Final[Handles] = np.zeros(0, np.int64)
ON_DEVICE: Final = np.uint8(1)
ON_HOST: Final = np.uint8(2)
UNPINNED: Final = np.uint8(4)
IDLE: Final = np.uint8(8)
UNSHARED: Final = np.uint8(16)
_ID_MASK: Final = (1 << 32) - 1


class LogicalPages:
    """All logical pages over one device pool and one pool of host slabs.

    ``refs`` counts the address spaces and snapshots that name a page, ``active`` those among them that run. A page
    without references goes as soon as no copy reads or writes it. All methods take arrays of handles and raise
    InvariantError if a precondition fails for any of them.
    """

    def __init__(self, pool: PagePool, slabs: HostSlabs) -> None:
        self.pool = pool
        self.slabs = slabs
        self.device = np.zeros(0, np.int32)  # physical page, or NOWHERE
        self.pending_device = np.zeros(0, np.int32)  # destination of a restore in flight
        self.host = np.zeros(0, np.int32)  # slab, or NOWHERE
        self.pending_host = np.zeros(0, np.int32)  # destination of a spill in flight
        self.epoch = np.zeros(0, np.int32)  # grows when committed columns are given up
        self.host_epoch = np.zeros(0, np.int32)
        self.columns = np.zeros(0, np.int16)  # committed positions, 0..64
        self.host_columns = np.zeros(0, np.int16)
        self.protected = np.zeros(0, np.int16)  # columns that a snapshot needs; never rewritten
        self.refs = np.zeros(0, np.int32)
        self.active = np.zeros(0, np.int32)
        self.writer = np.zeros(0, np.bool_)  # a running sequence may append here
        self.pins = np.zeros(0, np.int32)  # plans and copies that will read a replica
        self._generation = np.zeros(0, np.int64)
        self._free: list[int] = []

    @property
    def live(self) -> int:
        """Logical pages that exist."""
        return len(self._generation) - len(self._free)

    def ids(self, handles: Handles) -> Ids:
        """Row numbers of live handles, int64."""
        ids = handles & _ID_MASK
        if len(ids) and (int(ids.max()) >= len(self._generation) or (self._generation[ids] != handles >> 32).any()):
            raise InvariantError("a handle outlived its page")
        return ids

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

    def current(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which host replicas equal the page, bool [n]."""
        same: npt.NDArray[np.bool_] = self.host_epoch[ids] == self.epoch[ids]
        same &= self.host_columns[ids] == self.columns[ids]
        same &= self.host[ids] != NOWHERE
        return same

    def droppable(self, handles: Handles) -> Handles:
        """Those that still live and whose device replica is idle and has a current host copy."""
        ids = handles & _ID_MASK
        able = self._generation[ids] == handles >> 32
        able &= (self.device[ids] != NOWHERE) & self.current(ids) & (self.active[ids] == 0) & (self.pins[ids] == 0)
        found: Handles = handles[able]
        return found

    def facts(self, handles: Handles) -> npt.NDArray[np.uint8]:
        """Bits ``ON_DEVICE``, ``ON_HOST`` (a current copy), ``UNPINNED``, ``IDLE`` (no running sequence), ``UNSHARED``.

        For handles that are held by their owner: generations are not compared. Works on whole columns, so that asking
        for 100,000 pages is one gather.
        """
        current = (self.host != NOWHERE) & (self.host_epoch == self.epoch) & (self.host_columns == self.columns)
        bits = (self.device != NOWHERE).view(np.uint8) * ON_DEVICE
        bits |= current.view(np.uint8) * ON_HOST
        bits |= (self.pins == 0).view(np.uint8) * UNPINNED
        bits |= (self.active == 0).view(np.uint8) * IDLE
        bits |= (self.refs == 1).view(np.uint8) * UNSHARED
        found: npt.NDArray[np.uint8] = bits[handles & _ID_MASK]
        return found

    def on_device(self, handles: Handles) -> npt.NDArray[np.bool_]:
        """Which have a settled device replica, bool [n]."""
        settled: npt.NDArray[np.bool_] = self.device[self.ids(handles)] != NOWHERE
        return settled

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

    def check(self) -> None:
        """Raise InvariantError unless columns, pool and slabs agree (I-P1 to I-P4)."""
        live = np.ones(len(self._generation), np.bool_)
        live[self._free] = False
        ids = np.flatnonzero(live)
        for held, what in ((self._device_pages(), "device page"), (self._host_slabs(), "host slab")):
            if len(np.unique(held)) != len(held):
                raise InvariantError(f"a {what} belongs to two logical pages")
        if len(self._device_pages()) != self.pool.allocated:
            raise InvariantError(f"{len(self._device_pages())} device pages named, {self.pool.allocated} allocated")
        self._require((self.active[ids] == 0) | (self.device[ids] != NOWHERE), "an active page left the device")
        self._require(self.active[ids] <= self.refs[ids], "more active references than references")
        self._require(~self.writer[ids] | ((self.refs[ids] == 1) & (self.host[ids] == NOWHERE)), "a shared writer")
        self._require((self.refs[ids] > 0) | (self.pins[ids] > 0), "a page that nobody needs")
        self._require(
            (self.device[ids] != NOWHERE) | self.current(ids) | (self.refs[ids] == 0), "a page without a copy"
        )
        self._require(self.columns[ids] >= self.protected[ids], "protected columns that are not committed")

    def _device_pages(self) -> PageIds:
        return _somewhere(self.device, self.pending_device)

    def _host_slabs(self) -> Slabs:
        return _somewhere(self.host, self.pending_host)

    def _allocate(self, count: int) -> Ids:
        if count > len(self._free):
            self._extend(max(count - len(self._free), len(self._generation), 256))
        ids = np.array([self._free.pop() for _ in range(count)], np.int64)
        for place in (self.device, self.pending_device, self.host, self.pending_host):
            place[ids] = NOWHERE
        self.columns[ids] = self.protected[ids] = 0
        self.epoch[ids] = self.refs[ids] = self.active[ids] = self.pins[ids] = 0
        self.writer[ids] = False
        return ids

    def _extend(self, rows: int) -> None:
        first = len(self._generation)
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray):
                setattr(self, name, np.concatenate((column, np.zeros(rows, column.dtype))))
        self.device[first:] = self.pending_device[first:] = self.host[first:] = self.pending_host[first:] = NOWHERE
        self._free.extend(range(first + rows - 1, first - 1, -1))

    def _reap(self, ids: Ids) -> None:
        """Free those that neither a reference nor a copy needs any more."""
        gone = ids[(self.refs[ids] == 0) & (self.pins[ids] == 0)]
        if not len(gone):
            return
        on_device, on_host = self.device[gone], self.host[gone]
        self.pool.release(on_device[on_device != NOWHERE])
        self.slabs.give(on_host[on_host != NOWHERE])
        self.device[gone] = self.host[gone] = NOWHERE
        self._generation[gone] += 1
        self._free.extend(gone.tolist())

    @staticmethod
    def _require(holds: npt.NDArray[np.bool_], rule: str) -> None:
        if not holds.all():
            raise InvariantError(f"logical pages: {rule}")


def _somewhere(replicas: npt.NDArray[np.int32], in_flight: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """All places that are named."""
    places: npt.NDArray[np.int32] = np.concatenate((replicas, in_flight))
    named: npt.NDArray[np.int32] = places[places != NOWHERE]
    return named
