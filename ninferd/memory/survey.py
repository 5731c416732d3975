"""One look at all replicas: how much each part of the tree could give, counted by a few array operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninferd.memory.page_columns import IDLE, NO_HANDLES, ON_DEVICE, ON_HOST, UNPINNED, UNSHARED, Handles
from ninferd.memory.segment import Segment
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.stores import Stores

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]  # indices into ``Survey.handles``


@dataclass(eq=False, slots=True)
class Unit:
    """Pages that come and go together: those of a segment, or the tail of a snapshot. Last page first."""

    pages: Handles
    segment: Segment
    owner: Snapshot | None  # of a tail
    last_used: int
    rank: int = 0  # of the most valuable snapshot that needs it


@dataclass(eq=False)
class Survey:
    """All units, least recently used first and leaves before their parents, with counts per unit."""

    stores: Stores
    units: list[Unit] = field(init=False)
    handles: Handles = field(init=False)
    backed: Flags = field(init=False)  # idle, on the device and on the host
    lonely: Flags = field(init=False)  # idle and only on the device
    doubled: Flags = field(init=False)  # on both, idle or not: the host copy could go
    of_unit: Counts = field(init=False)  # unit of each page
    _starts: Counts = field(init=False)  # first page of each unit

    def __post_init__(self) -> None:
        self.units = sorted(self._units(), key=lambda unit: (unit.last_used, -unit.segment.end, unit.owner is None))
        parts = [unit.pages for unit in self.units]
        lengths = [len(part) for part in parts]
        self.handles = np.concatenate(parts) if parts else NO_HANDLES
        self._starts = np.cumsum([0, *lengths[:-1]]) if parts else np.zeros(0, np.int64)
        self.of_unit = np.repeat(np.arange(len(parts)), lengths)
        facts = self.stores.pages.facts(self.handles)
        place = facts & (ON_DEVICE | ON_HOST | UNPINNED)
        idle = (facts & IDLE) > 0
        self.doubled = place == (ON_DEVICE | ON_HOST | UNPINNED)
        self.backed = self.doubled & idle
        self.lonely = (place == (ON_DEVICE | UNPINNED)) & idle
        unshared = (facts & (UNPINNED | IDLE | UNSHARED)) == (UNPINNED | IDLE | UNSHARED)  # would go with its unit
        self._device_gain = self.counts(unshared & ((facts & ON_DEVICE) > 0))
        self._host_gain = self.counts(unshared & ((facts & ON_HOST) > 0))
        self.backed_counts = self.counts(self.backed)
        self.lonely_counts = self.counts(self.lonely)

    def counts(self, flags: Flags) -> Counts:
        """How many flagged pages each unit has."""
        if not len(self._starts):
            return np.zeros(0, np.int64)
        return np.add.reduceat(flags, self._starts, dtype=np.int64)

    def gain(self, gone: Flags) -> tuple[int, int]:
        """(device pages, host slabs) that would be free if the ``gone`` units were."""
        return int(self._device_gain[gone].sum()), int(self._host_gain[gone].sum())

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
