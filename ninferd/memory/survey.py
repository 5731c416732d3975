"""One look at all replicas: how much each part of the tree could give, counted by a few array operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ninferd.memory.page_columns import IDLE, NO_HANDLES, ON_DEVICE, ON_HOST, UNPINNED, UNSHARED, Handles
from ninferd.memory.segment import Segment
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.stores import Stores

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
_BACKED: Final = ON_DEVICE | ON_HOST | UNPINNED | IDLE
Places = npt.NDArray[np.int64]  # indices into ``Survey.handles``


@dataclass(eq=False, slots=True)
class Unit:
    """Pages that come and go together: those of a segment, or the tail of a snapshot. Last page first."""

    pages: Handles
    segment: Segment
    owner: Snapshot | None  # of a tail
    last_used: int
    rank: int = 0  # of the most valuable snapshot that needs it


class Survey:
    """All units, least recently used first and leaves before their parents. What few plans ask for is counted late."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.units = sorted(self._units(), key=lambda unit: (unit.last_used, -unit.segment.end, unit.owner is None))
        parts = [unit.pages for unit in self.units]
        self._lengths = [len(part) for part in parts]
        self.handles: Handles = np.concatenate(parts) if parts else NO_HANDLES
        self._facts = stores.pages.facts(self.handles)

    @cached_property
    def of_unit(self) -> Counts:
        """Unit of each page."""
        return np.repeat(np.arange(len(self.units)), self._lengths)

    @cached_property
    def doubled(self) -> Flags:
        """On the device and on the host, in use or not: the host copy could go."""
        return self._having(ON_DEVICE | ON_HOST | UNPINNED)

    @cached_property
    def backed(self) -> Flags:
        """On the device and on the host, and idle: the device copy could go."""
        return self._having(_BACKED)

    @cached_property
    def lonely(self) -> Flags:
        """Idle, and only on the device."""
        return self._having(ON_DEVICE | UNPINNED | IDLE) & ~self.doubled

    @cached_property
    def backed_counts(self) -> Counts:
        """Per unit."""
        return self.counts(self.backed)

    @cached_property
    def lonely_counts(self) -> Counts:
        """Per unit."""
        return self.counts(self.lonely)

    @cached_property
    def _gains(self) -> tuple[Counts, Counts]:
        """Device pages and host slabs that would be free without each unit: those that nobody else names."""
        goes = UNPINNED | IDLE | UNSHARED
        return self.counts(self._having(goes | ON_DEVICE)), self.counts(self._having(goes | ON_HOST))

    def _having(self, bits: np.uint8) -> Flags:
        """Pages of which all these facts hold."""
        having: Flags = (self._facts & bits) == bits
        return having

    def counts(self, flags: Flags) -> Counts:
        """How many flagged pages each unit has."""
        if not self.units:
            return np.zeros(0, np.int64)
        return np.add.reduceat(flags, np.cumsum([0, *self._lengths[:-1]]), dtype=np.int64)

    def gain(self, gone: Flags) -> tuple[int, int]:
        """(device pages, host slabs) that would be free if the ``gone`` units were."""
        if not gone.any():
            return 0, 0
        device, host = self._gains
        return int(device[gone].sum()), int(host[gone].sum())

    def rank_units(self, order: list[Snapshot]) -> None:
        """Give each unit the place in ``order`` of the most valuable snapshot that needs it; absent ones rank above."""
        places = {id(snapshot): place for place, snapshot in enumerate(order)}
        highest: dict[int, int] = {}
        for segment in reversed(list(self.stores.tree.segments())):
            own = [places.get(id(snapshot), len(order)) for snapshot in segment.snapshots]
            below = [highest[id(child)] for child in segment.offspring()]
            highest[id(segment)] = max((*own, *below))
        for unit in self.units:
            owner = unit.owner
            unit.rank = highest[id(unit.segment)] if owner is None else places.get(id(owner), len(order))

    def lineages(self, places: Places) -> frozenset[int]:
        """Conversations that need any of the pages at these places."""
        found: set[int] = set()
        for unit in (self.units[index] for index in np.unique(self.of_unit[places])):
            if unit.owner is not None:
                found.add(unit.owner.lineage)
            else:
                found.update(snapshot.lineage for snapshot in unit.segment.subtree())
        return frozenset(found)

    def first(self, flags: Flags, wanted: int) -> Places:
        """Places of the first ``wanted`` flagged pages in the order of the units."""
        return np.flatnonzero(flags)[:wanted]

    def least_valuable(self, flags: Flags, wanted: int) -> Places:
        """Places of ``wanted`` flagged pages of the units of lowest rank, within a unit from its end."""
        if not wanted:
            return np.zeros(0, np.int64)
        ranks = np.array([unit.rank for unit in self.units], np.int64)
        places = np.flatnonzero(flags)
        order = np.argsort(ranks[self.of_unit[places]], kind="stable")
        return places[order[:wanted]]

    def _units(self) -> list[Unit]:
        made = []
        for segment in (self.stores.tree.root, *self.stores.tree.segments()):
            if len(segment.pages):
                made.append(Unit(segment.pages[::-1], segment, None, segment.last_used))
            for snapshot in segment.snapshots:
                if len(snapshot.tail_page):
                    made.append(Unit(snapshot.tail_page, segment, snapshot, snapshot.last_used))
        return made
