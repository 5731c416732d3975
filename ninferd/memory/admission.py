"""May a request run now, from where, and what must move for it? Plans pin what they will use when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.eviction import plan_with_growth
from ninferd.memory.page_columns import NO_HANDLES, NOWHERE, Handles
from ninferd.memory.reclaim import Demand, ReclaimPlan
from ninferd.memory.snapshots import SHARED, Match, Snapshot
from ninferd.memory.stores import Stores
from ninferd.memory.tenant import Request

MAX_SOURCES = 4  # snapshots that are considered besides starting from nothing


@dataclass(frozen=True)
class Refused:
    """Why a request does not run now. ``needs_transfer``: copies under way may make it fit; ask again."""

    kind: Literal["needs_transfer", "blocked", "impossible"]
    message: str


@dataclass(frozen=True)
class Source:
    """Where a request could start from, and what that takes."""

    snapshot: Snapshot | None
    path: Handles  # full pages before its frontier
    missing: int  # of them, only on the host
    moves_tail: bool  # its conversation goes on: the copy on the device is taken over, the one on the host stays
    moves_image: bool
    pages: int  # to reserve
    cost_ns: float

    @property
    def tail(self) -> Handles:
        """Page of the tokens behind the last full page."""
        return NO_HANDLES if self.snapshot is None else self.snapshot.tail_page


@dataclass(frozen=True)
class Admitted:
    """A source whose room is free, or will be once the moves of ``plan`` have landed."""

    source: Source
    plan: ReclaimPlan


def impossible(stores: Stores, request: Request) -> Refused | None:
    """Arithmetic on capacities alone: not even empty caches could hold it."""
    if request.pages <= stores.pool.capacity:
        return None
    return Refused(
        "impossible",
        f"prompt and output of {request.cache_tokens} tokens need {request.pages} cache pages of {PAGE_TOKENS} tokens, "
        f"there are {stores.pool.capacity}",
    )


def sources(stores: Stores, request: Request, match: Match) -> list[Source]:
    """Ways to start ``request``, cheapest first. Costs only rank: each of them gives the same tokens."""
    found = [_source(stores, request, match, snapshot) for snapshot in match.snapshots[:MAX_SOURCES]]
    found.append(_from_nothing(stores, request))
    found.sort(key=lambda source: source.cost_ns)
    return found


def plan_admission(stores: Stores, found: list[Source]) -> Admitted | Refused:
    """Try ``found`` in order. On success its source is pinned.

    A plan that would lose something waits for copies under way first: they may make the loss unnecessary.
    """
    for source in found:
        if (stores.pages.pending_device[stores.pages.ids(source.path)] != NOWHERE).any():
            return Refused("needs_transfer", "the prefix is on its way to the device")
        pin(stores, source)
        plan = plan_with_growth(stores, Demand(pages=source.pages, slots=int(not source.moves_image)))
        if plan is not None and not (plan.evictions and stores.flights):
            return Admitted(source, plan)
        unpin(stores, source)
        if plan is not None:
            return Refused("needs_transfer", "copies to the host are under way")
    if stores.flights:
        return Refused("needs_transfer", "copies are under way")
    return Refused("blocked", _why(stores, found[-1]))


def pin(stores: Stores, source: Source) -> None:
    """Nothing of it may be dropped, moved or taken over by anyone else."""
    stores.pages.pin(source.path)
    stores.pages.pin(source.tail)
    if source.snapshot is not None:
        stores.images.pin(source.snapshot.image)
        source.snapshot.pins += 1


def unpin(stores: Stores, source: Source, *, tail: bool = True, image: bool = True) -> None:
    """The opposite; without ``tail`` or ``image`` where they were taken over already."""
    stores.pages.unpin(source.path)
    if source.snapshot is None:
        return
    source.snapshot.pins -= 1
    if tail:
        stores.pages.unpin(source.tail)
    if image:
        stores.images.unpin(source.snapshot.image)


def continues(request: Request, snapshot: Snapshot) -> bool:
    """Whether a request is the next turn of the conversation of ``snapshot``, rather than a fork of it."""
    return snapshot.lineage != SHARED and snapshot.session == request.session


def _source(stores: Stores, request: Request, match: Match, snapshot: Snapshot) -> Source:
    pages, sizes = stores.pages, stores.sizes
    blocks = snapshot.frontier // PAGE_TOKENS
    path = match.pages[:blocks]
    missing = blocks - int(pages.on_device(path).sum())
    going_on = continues(request, snapshot)
    tail = snapshot.tail_page
    moves_tail = going_on and len(tail) > 0 and len(pages.droppable(tail)) > 0
    host_tail = len(tail) > 0 and not pages.on_device(tail).all()
    image = snapshot.image
    copied = (missing + host_tail) * sizes.bundle_bytes + (0 if image.on_device else sizes.image_bytes)
    cost_ns = stores.costs.restore_ns(copied, missing + host_tail + (not image.on_device))
    cost_ns += stores.costs.prefill_ns(snapshot.frontier, len(request.prompt) - snapshot.frontier)
    needed = request.pages - blocks + missing - moves_tail
    return Source(snapshot, path, missing, moves_tail, going_on and image.droppable, needed, cost_ns)


def _from_nothing(stores: Stores, request: Request) -> Source:
    cost_ns = stores.costs.prefill_ns(0, len(request.prompt))
    return Source(None, NO_HANDLES, 0, False, False, request.pages, cost_ns)


def _why(stores: Stores, source: Source) -> str:
    return (
        f"{source.pages} cache pages and a state slot are needed; {stores.pool.available} of {stores.pool.capacity} "
        f"pages and {stores.images.free} of {stores.images.capacity} slots are free, the rest is in use"
    )
