"""Value density of snapshots in the tree as it is now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ninferd.memory.segment import Segment
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.stores import Stores

NOTHING_GONE: Mapping[Segment, int] = {}


def density(stores: Stores, snapshot: Snapshot) -> float:
    """Prefill time that it saves over bytes that only it needs; both against what the tree would keep without it."""
    image_bytes = stores.sizes.slabs_per_image * stores.sizes.slab_bytes
    own_pages = len(snapshot.tail_page)
    for segment in exclusive(snapshot):
        own_pages += len(segment.pages)
    base = retained_below(snapshot)
    saved = stores.costs.prefill_ns(base, snapshot.frontier - base)
    saved -= stores.costs.restore_ns(image_bytes, stores.sizes.slabs_per_image)
    retention = stores.sessions.retention(snapshot)
    size_bytes = image_bytes + own_pages * stores.sizes.slab_bytes
    aged = stores.values.density(snapshot.hits, saved, size_bytes, retention)
    return aged - stores.values.age + snapshot.age


def exclusive(snapshot: Snapshot, gone: Mapping[Segment, int] = NOTHING_GONE) -> Iterator[Segment]:
    """Segments that exist for this snapshot alone, deepest first, if ``gone`` snapshots had left each segment."""
    for segment in snapshot.anchored.path():
        if segment.live_below - gone.get(segment, 0) != 1:
            return
        yield segment


def retained_below(snapshot: Snapshot) -> int:
    """Deepest frontier before this one from which its tokens could be prefilled again."""
    own = snapshot.anchored
    before = [
        other.frontier
        for other in own.snapshots
        if other.frontier < snapshot.frontier and np.array_equal(other.tail.ids, snapshot.tail.ids[: len(other.tail)])
    ]
    if before:
        return max(before)
    above = own.parent
    while above is not None:
        aligned = [other.frontier for other in above.snapshots if not len(other.tail)]
        if aligned:
            return max(aligned)
        above = above.parent
    return 0


def ranked(stores: Stores, snapshots: list[Snapshot]) -> list[tuple[float, Snapshot]]:
    """(density, snapshot) in the order in which they are given up: superseded ones first, then the least dense."""
    valued = [(density(stores, snapshot), snapshot) for snapshot in snapshots]
    valued.sort(key=lambda each: (not each[1].superseded, each[0], each[1].last_used))
    return valued
