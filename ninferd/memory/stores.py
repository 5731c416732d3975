"""Everything the memory system keeps, in one place that its parts share. The engine's thread is the only mutator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ninferd.memory.copies import Copies
from ninferd.memory.counters import KvTransfers, MemoryCounters, StateTransfers
from ninferd.memory.host_slabs import HostSlabs, slab_bytes_for
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.pages import PagePool
from ninferd.memory.prefix_tree import PrefixTree
from ninferd.memory.sessions import SessionIndex
from ninferd.memory.state_images import StateImages
from ninferd.memory.value import CostModel, ValueClock

if TYPE_CHECKING:
    from ninferd.memory.flights import Flight


@dataclass(frozen=True)
class BundleSizes:
    """Bytes of what is cached. A page bundle is the main page and, behind it, the page of the draft model."""

    main_page_bytes: int
    backend_page_bytes: int
    image_bytes: int

    @property
    def bundle_bytes(self) -> int:
        """One page of all pools."""
        return self.main_page_bytes + self.backend_page_bytes

    @cached_property
    def slab_bytes(self) -> int:
        """One host slab."""
        return slab_bytes_for(self.bundle_bytes)

    @cached_property
    def slabs_per_image(self) -> int:
        """Host slabs of one state image."""
        return -(-self.image_bytes // self.slab_bytes)


@dataclass
class Stores:
    """The physical pools, what is logically in them, and what it is worth."""

    sizes: BundleSizes
    pool: PagePool
    slabs: HostSlabs
    pages: LogicalPages
    images: StateImages
    tree: PrefixTree
    copies: Copies
    costs: CostModel = field(default_factory=CostModel)
    values: ValueClock = field(default_factory=ValueClock)
    sessions: SessionIndex = field(default_factory=SessionIndex)
    counters: MemoryCounters = field(default_factory=MemoryCounters)
    flights: dict[int, Flight] = field(default_factory=dict)  # transfers under way, by ticket
    lineages: dict[int, int] = field(default_factory=dict)  # snapshots of each conversation in the tree

    def count(self, direction: str, pages: int, images: int, seconds: float) -> None:
        """A batch of copies ended; its time is shared out by bytes."""
        kv, state, sizes = self.counters.kv_transfers, self.counters.state_transfers, self.sizes
        main, backend = pages * sizes.main_page_bytes, pages * sizes.backend_page_bytes
        image = images * sizes.image_bytes
        per_byte = seconds / max(1, main + backend + image)
        for pool, size_bytes in (("main_kv", main), ("backend_kv", backend)):
            if size_bytes:
                _add(kv, f"{pool}_{direction}_pages", pages)
                _add(kv, f"{pool}_{direction}_bytes", size_bytes)
                _add(kv, f"{pool}_{direction}_seconds", size_bytes * per_byte)
        _add(state, f"state_{direction}_count", images)
        _add(state, f"state_{direction}_bytes", image)
        _add(state, f"state_{direction}_seconds", image * per_byte)


def _add(group: KvTransfers | StateTransfers, name: str, amount: float) -> None:
    setattr(group, name, getattr(group, name) + amount)
