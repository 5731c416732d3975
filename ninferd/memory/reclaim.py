"""What to give up for a demand: free copies first, then move to the host, and lose something only if that is full.

Deterministic and without search (spec/memory §6.9). In this order: drop device copies that the host has too, least
recently used first; move device-only pages and images of least value to the host, growing it if the budget allows;
evict snapshots, superseded and least dense first, only as many as the rest of the demand needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.segment import Segment
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.state_images import StateImage
from ninferd.memory.stores import Stores
from ninferd.memory.survey import Flags, Places, Survey
from ninferd.memory.worth import exclusive, ranked

_NOWHERE: Final[Places] = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Demand:
    """What must become free."""

    pages: int = 0
    slots: int = 0
    slabs: int = 0
    worth: float = math.inf  # nothing denser may be lost for it
    lossless: bool = False  # only drop copies that exist twice: nothing moves, nothing is lost


@dataclass(frozen=True)
class ReclaimPlan:
    """Steps, in the order of the fields."""

    host_page_drops: Handles = field(default_factory=lambda: NO_HANDLES)
    host_image_drops: tuple[StateImage, ...] = ()
    grow_to: int = 0  # host slabs that must be free then
    evictions: tuple[Snapshot, ...] = ()
    page_drops: Handles = field(default_factory=lambda: NO_HANDLES)
    image_drops: tuple[StateImage, ...] = ()
    page_moves: Handles = field(default_factory=lambda: NO_HANDLES)
    image_moves: tuple[StateImage, ...] = ()
    slabs: int = 0  # free ones that the moves and the demand take
    wished_slabs: int = 0  # what would have been needed to evict nothing
    kv_lineages: frozenset[int] = frozenset()  # conversations whose pages leave the device
    image_lineages: frozenset[int] = frozenset()

    @property
    def moves(self) -> bool:
        """Whether something must be copied before its place is free."""
        return bool(len(self.page_moves) or self.image_moves)

    @property
    def is_empty(self) -> bool:
        """Whether nothing needs to change."""
        return not (self.evictions or self.moves or len(self.page_drops) or self.image_drops)


@dataclass(frozen=True)
class _Split:
    """How much of a demand each kind of step covers, for one set of evictions; ``short`` is what none covers."""

    page_drops: int
    page_moves: int
    image_drops: int
    image_moves: int
    host_page_drops: int
    host_image_drops: int
    slabs: int
    grow_to: int
    short: int


def plan_reclaim(stores: Stores, demand: Demand, *, grow: bool = True) -> ReclaimPlan | None:
    """The steps that make ``demand`` fit, or None. Changes nothing; ``grow`` lets it count on host growth."""
    if (
        demand.pages <= stores.pool.available
        and demand.slots <= stores.images.free
        and demand.slabs <= stores.slabs.free
    ):
        return ReclaimPlan(slabs=demand.slabs)
    return _Planner(stores, demand, grow=grow).plan()


class _Planner:
    """One demand. Values are only computed if something must be moved or lost: most plans just drop copies."""

    def __init__(self, stores: Stores, demand: Demand, *, grow: bool) -> None:
        self._stores = stores
        self._demand = demand
        self._room = stores.slabs.obtainable() if grow else stores.slabs.free
        self._survey = Survey(stores)
        self._snapshots = list(stores.tree.snapshots())
        idle = [each for each in self._snapshots if each.image.on_device and not each.image.pins]
        self._backed = [each for each in idle if each.image.slabs is not None]
        self._backed.sort(key=lambda each: (not each.superseded, each.last_used))
        self._lonely = [each for each in idle if each.image.slabs is None]

    @cached_property
    def _ranked(self) -> list[tuple[float, Snapshot]]:
        """Densities, and snapshots in the order in which they are given up; the units of the survey know it, too."""
        valued = ranked(self._stores, self._snapshots)
        self._survey.rank_units([each for _, each in valued])
        return valued

    @cached_property
    def _unit_of(self) -> dict[int, int]:
        """Unit of each segment, and of each snapshot with a tail."""
        units = enumerate(self._survey.units)
        return {id(unit.segment if unit.owner is None else unit.owner): index for index, unit in units}

    @cached_property
    def _lesser(self) -> list[Snapshot]:
        """What the demand may cost, in the order in which it is given up."""
        return [each for dense, each in self._ranked if self._may_lose(dense, each)]

    @cached_property
    def _spare(self) -> Flags:
        """Host copies that the demand may take from pages that are on the device as well."""
        of_lesser = np.array([unit.rank < len(self._lesser) for unit in self._survey.units], np.bool_)
        return self._survey.doubled & of_lesser[self._survey.of_unit]

    def plan(self) -> ReclaimPlan | None:
        victims: list[Snapshot] = []
        split = first = self._split(victims)
        for snapshot in self._lesser if split.short else ():
            if snapshot.pins:
                continue
            victims.append(snapshot)  # even if it gives nothing alone: points of one path may only give jointly
            split = self._split(victims)
            if not split.short:
                break
        if split.short:
            return None
        for snapshot in reversed(victims.copy()):  # from the most valuable on: was it needed after all?
            without = [each for each in victims if each is not snapshot]
            attempt = self._split(without)
            if not attempt.short:
                victims, split = without, attempt
        return self._steps(victims, split, first.slabs)

    def _may_lose(self, dense: float, snapshot: Snapshot) -> bool:
        """Whether the demand is worth more than this snapshot."""
        return not self._demand.lossless and (snapshot.superseded or dense < self._demand.worth)

    def _split(self, victims: list[Snapshot]) -> _Split:
        survey, demand, stores = self._survey, self._demand, self._stores
        gone = self._gone(victims)
        device_gain, host_gain = survey.gain(gone)
        per_image = stores.images.slabs_per_image
        freed = [each.image for each in victims if not each.image.pins]
        host_gain += sum(per_image for image in freed if image.slabs is not None)

        pages = max(0, demand.pages - stores.pool.available - device_gain)
        page_drops = min(pages, int(survey.backed_counts[~gone].sum()))
        page_moves = 0
        if page_drops < pages and not demand.lossless:
            page_moves = min(pages - page_drops, int(survey.lonely_counts[~gone].sum()))
        slots = max(0, demand.slots - stores.images.free - sum(image.on_device for image in freed))
        image_drops = min(slots, len(_without(self._backed, victims)))
        image_moves = 0 if demand.lossless else min(slots - image_drops, len(_without(self._lonely, victims)))

        slabs = demand.slabs + page_moves + image_moves * per_image
        missing = max(0, slabs - self._room - host_gain)
        host_page_drops = host_image_drops = 0
        if missing:
            kept = ~gone[survey.of_unit]
            host_page_drops = min(missing, int(self._spare_after(kept, page_drops).sum()))
            images = self._spare_images([*victims, *_without(self._backed, victims)[:image_drops]])
            host_image_drops = min(-(-(missing - host_page_drops) // per_image), len(images))
        host_drops = host_page_drops + host_image_drops * per_image
        return _Split(
            page_drops,
            page_moves,
            image_drops,
            image_moves,
            host_page_drops,
            host_image_drops,
            slabs,
            grow_to=max(0, slabs - host_gain),
            short=(pages - page_drops - page_moves)
            + (slots - image_drops - image_moves)
            + max(0, missing - host_drops),
        )

    def _steps(self, victims: list[Snapshot], split: _Split, wished_slabs: int) -> ReclaimPlan:
        survey = self._survey
        kept = ~self._gone(victims)[survey.of_unit]
        image_drops = _without(self._backed, victims)[: split.image_drops]
        image_moves = []
        if split.image_moves:
            names = {id(each) for each in _without(self._lonely, victims)}
            image_moves = [each for _, each in self._ranked if id(each) in names][: split.image_moves]
        drops = survey.first(survey.backed & kept, split.page_drops)
        moves = host_drops = _NOWHERE
        if split.page_moves and self._ranked:
            moves = survey.least_valuable(survey.lonely & kept, split.page_moves)
        if split.host_page_drops:
            host_drops = survey.least_valuable(self._spare_after(kept, split.page_drops), split.host_page_drops)
        host_images = self._spare_images([*victims, *image_drops]) if split.host_image_drops else []
        return ReclaimPlan(
            host_page_drops=survey.handles[host_drops],
            host_image_drops=tuple(each.image for each in host_images[: split.host_image_drops]),
            grow_to=split.grow_to,
            evictions=tuple(victims),
            page_drops=survey.handles[drops],
            image_drops=tuple(each.image for each in image_drops),
            page_moves=survey.handles[moves],
            image_moves=tuple(each.image for each in image_moves),
            slabs=split.slabs,
            wished_slabs=wished_slabs,
            kv_lineages=survey.lineages(np.concatenate((drops, moves))),
            image_lineages=frozenset(each.lineage for each in (*image_drops, *image_moves)),
        )

    def _spare_images(self, taken: list[Snapshot]) -> list[Snapshot]:
        """Snapshots whose image the host may give up, because the device has it, too."""
        return [each for each in _without(self._lesser, taken) if each.image.droppable]

    def _spare_after(self, kept: Flags, page_drops: int) -> Flags:
        """Host copies that may be dropped once ``page_drops`` pages are on the host alone."""
        spare = self._spare & kept
        if page_drops:
            spare[np.flatnonzero(self._survey.backed & kept)[:page_drops]] = False
        return spare

    def _gone(self, victims: list[Snapshot]) -> Flags:
        """Which units leave with ``victims``, bool [units]."""
        gone = np.zeros(len(self._survey.units), np.bool_)
        left: dict[Segment, int] = {}
        for victim in victims:
            for segment in exclusive(victim, left):
                gone[self._unit_of[id(segment)]] = True
            for segment in victim.anchored.path():
                left[segment] = left.get(segment, 0) + 1
            if len(victim.tail_page):
                gone[self._unit_of[id(victim)]] = True
        return gone


def _without(snapshots: list[Snapshot], taken: list[Snapshot]) -> list[Snapshot]:
    """``snapshots`` that are not among ``taken``."""
    names = {id(each) for each in taken}
    return [each for each in snapshots if id(each) not in names]
