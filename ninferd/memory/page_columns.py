"""The columns behind logical pages: where each replica is, who needs it, and views of many pages at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import HostSlabs, Slabs
from ninferd.memory.pages import PageIds, PagePool

Handles = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]

NOWHERE: Final = -1
NO_HANDLES: Final[Handles] = np.zeros(0, np.int64)
ON_DEVICE: Final = np.uint8(1)
ON_HOST: Final = np.uint8(2)
UNPINNED: Final = np.uint8(4)
IDLE: Final = np.uint8(8)
UNSHARED: Final = np.uint8(16)
ID_MASK: Final = (1 << 32) - 1


class PageColumns:
    """Rows of logical pages; a row is reused under a new generation once its page is gone."""

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
        ids = handles & ID_MASK
        if len(ids) and (int(ids.max()) >= len(self._generation) or (self._generation[ids] != handles >> 32).any()):
            raise InvariantError("a handle outlived its page")
        return ids

    def current(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which host replicas equal the page, bool [n]."""
        same: npt.NDArray[np.bool_] = self.host_epoch[ids] == self.epoch[ids]
        same &= self.host_columns[ids] == self.columns[ids]
        same &= self.host[ids] != NOWHERE
        return same

    def droppable(self, handles: Handles) -> Handles:
        """Those that still live and whose device replica is idle and has a current host copy."""
        ids = handles & ID_MASK
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
        found: npt.NDArray[np.uint8] = bits[handles & ID_MASK]
        return found

    def on_device(self, handles: Handles) -> npt.NDArray[np.bool_]:
        """Which have a settled device replica, bool [n]."""
        settled: npt.NDArray[np.bool_] = self.device[self.ids(handles)] != NOWHERE
        return settled

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
