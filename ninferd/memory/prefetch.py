"""While the head of the queue waits for room, the pages of its prefix come back beside the work of others."""

from __future__ import annotations

from typing import Final

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.copies import Transfer
from ninferd.memory.eviction import carry_out
from ninferd.memory.flights import RestoreFlight
from ninferd.memory.identity import Tokens
from ninferd.memory.reclaim import Demand, plan_reclaim
from ninferd.memory.stores import Stores

BATCH_PAGES: Final = 256


def prefetch(stores: Stores, prompt: Tokens) -> int:
    """Start to restore the next pages of the deepest known prefix; how many, 0 if there is nothing to do.

    Takes free pages and those whose content the host has too, never the last copy of anything, and waits for nothing.
    """
    match = stores.tree.match(prompt)
    if stores.flights or not match.snapshots:
        return 0
    path = match.pages[: match.best_frontier // PAGE_TOKENS]
    wanted = path[~stores.pages.on_device(path)][:BATCH_PAGES]
    if not len(wanted):
        return 0
    stores.pages.pin(path)  # its own pages are no room for it
    plan = plan_reclaim(stores, Demand(pages=len(wanted), lossless=True))
    started = plan is not None and carry_out(stores, plan)
    stores.pages.unpin(path)
    reservation = stores.pool.reserve(len(wanted)) if started else None
    if reservation is None:
        return 0
    slabs, pages = stores.pages.start_restore(wanted, reservation)
    try:
        ticket = stores.copies.start(Transfer("h2d", pages, slabs))
    except MemoryError:
        stores.pages.end_restore(wanted, landed=False)
        return 0
    stores.flights[ticket] = RestoreFlight(wanted)
    stores.tree.touch(match.snapshots[0])
    stores.counters.extras.prefetched_pages += len(wanted)
    return len(wanted)
