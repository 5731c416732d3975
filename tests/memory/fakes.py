"""What the memory library asks of the machine, as plain objects a test controls."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninferd.memory.host_budget import HostLimits, HostMemory
from ninferd.memory.host_slabs import HostSlabs
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.pages import PagePool, PageReservation

GIB = 1 << 30


@dataclass
class FakePinned:
    """Pins by remembering sizes; fails as often as it is told to."""

    sizes: list[int] = field(default_factory=list)
    failures: int = 0

    def pin(self, chunk: int, size_bytes: int) -> bool:
        if self.failures:
            self.failures -= 1
            return False
        assert chunk == len(self.sizes)
        self.sizes.append(size_bytes)
        return True

    def unpin(self, chunk: int) -> None:
        assert chunk == len(self.sizes) - 1
        self.sizes.pop()


@dataclass
class FakeHost:
    """A host with as much memory as the test says; None: it cannot be read."""

    memory: HostMemory | None = field(default_factory=lambda: HostMemory(64 * GIB, None))

    def read(self) -> HostMemory | None:
        return self.memory


def make_slabs(
    ceiling: int,
    *,
    slab_bytes: int = 4096,
    chunk: int = 16,
    host: FakeHost | None = None,
    pinned: FakePinned | None = None,
    reserve_bytes: int = 4 * GIB,
) -> HostSlabs:
    """A pool of at most ``ceiling`` slabs that grows by ``chunk``; it starts with a quarter."""
    limits = HostLimits(ceiling * slab_bytes, reserve_bytes)
    return HostSlabs(
        slab_bytes,
        limits,
        (host or FakeHost()).read,
        FakePinned() if pinned is None else pinned,
        chunk_bytes=chunk * slab_bytes,
    )


def make_pages(device: int, host: int) -> LogicalPages:
    """Logical pages over ``device`` pages and ``host`` slabs, all of them pinned."""
    slabs = make_slabs(host)
    assert slabs.grow_for(host)
    return LogicalPages(PagePool(device), slabs)


def reserve(pool: PagePool, pages: int) -> PageReservation:
    """A reservation that must succeed."""
    reservation = pool.reserve(pages)
    assert reservation is not None
    return reservation
