"""Pinned host memory as equal slabs: which are free, when more are pinned, what is given back. No bytes here.

One page bundle takes one slab and a state image takes several, anywhere, so free memory is never too fragmented to
be used. Slabs are numbered through all chunks in order; the lowest free ones are taken first, so that the last chunk
empties and can be returned (spec/memory §5.3-5.7, Appendix A.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_budget import HostLimits, HostMemory, Veto, veto_growth

Slabs = npt.NDArray[np.int32]
Fit = Literal["pinned", "growable", "blocked"]

SLAB_ALIGNMENT: Final = 4096
CHUNK_BYTES: Final = 64 << 20
START_FRACTION: Final = 4  # a quarter of the ceiling is pinned at the start


class PinnedBackend(Protocol):
    """Who provides the memory of a chunk."""

    def pin(self, chunk: int, size_bytes: int) -> bool:
        """Allocate and page-lock chunk number ``chunk``; False if the system refuses."""
        ...

    def unpin(self, chunk: int) -> None:
        """Give the memory of the last chunk back."""
        ...


@dataclass
class SlabCounters:
    """Monotone, except the three fields of the last veto (spec/memory §8.6)."""

    grows: int = 0
    grow_refusals: int = 0
    policy_refusals: int = 0
    pin_failures: int = 0
    refusals: int = 0
    ram_refusals: int = 0
    post_grow_failures: int = 0
    last_veto: Veto = "None"
    last_wanted_bytes: int = 0
    last_available_bytes: int = 0


def slab_bytes_for(bundle_bytes: int) -> int:
    """Bytes of the slab that holds one page bundle."""
    return -(-bundle_bytes // SLAB_ALIGNMENT) * SLAB_ALIGNMENT


@dataclass
class HostSlabs:
    """The slabs of all pinned chunks.

    Invariant: every slab of every chunk is free or taken, and the start chunk is never returned.
    """

    slab_bytes: int
    limits: HostLimits
    read: Callable[[], HostMemory | None]
    backend: PinnedBackend
    chunk_bytes: int = CHUNK_BYTES
    counters: SlabCounters = field(default_factory=SlabCounters)
    _chunks: list[int] = field(default_factory=list)  # slabs of each chunk
    _free: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    free: int = 0

    def __post_init__(self) -> None:
        start = self.limits.ceiling_bytes // START_FRACTION // self.slab_bytes
        if start:
            self._pin(start)  # a failure leaves an empty pool that growth may fill later

    @property
    def capacity(self) -> int:
        """Slabs of all chunks."""
        return len(self._free)

    @property
    def taken(self) -> int:
        """Slabs in use."""
        return self.capacity - self.free

    @property
    def chunks(self) -> int:
        """Pinned chunks."""
        return len(self._chunks)

    @property
    def ceiling(self) -> int:
        """Slabs that may ever be pinned."""
        return self.limits.ceiling_bytes // self.slab_bytes

    @property
    def largest_free_run(self) -> int:
        """Slabs of the longest free run; a gauge only, nothing needs neighbours."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self._free, [False])).astype(np.int8)))
        return int((edges[1::2] - edges[::2]).max(initial=0))

    def take(self, slabs: int) -> Slabs | None:
        """The lowest ``slabs`` free slabs, int32; None if fewer are free. Never grows."""
        if slabs > self.free:
            self.counters.refusals += 1
            return None
        taken = np.flatnonzero(self._free)[:slabs].astype(np.int32)
        self._free[taken] = False
        self.free -= slabs
        return taken

    def give(self, slabs: Slabs) -> None:
        """Free slabs; one that is free already is an error."""
        if self._free[slabs].any() or len(np.unique(slabs)) != len(slabs):
            raise InvariantError(f"host slabs given back twice: {slabs.tolist()}")
        self._free[slabs] = True
        self.free += len(slabs)

    def fit(self, slabs: int) -> Fit:
        """Whether ``slabs`` can be had now, after one growth, or not. Pure: neither grows nor counts."""
        if slabs <= self.free:
            return "pinned"
        return "growable" if self._veto(slabs - self.free, self.read()) == "None" else "blocked"

    def obtainable(self) -> int:
        """Slabs that could be had without taking any from their holders: free now, or granted by the budget."""
        reading = self.read()
        if reading is None:
            return self.free
        by_memory = max(0, reading.headroom_bytes - self.limits.reserve_bytes) // self.slab_bytes
        return self.free + min(self.ceiling - self.capacity, by_memory)

    def grow_for(self, slabs: int) -> bool:
        """Pin what is missing for ``slabs`` free ones, a chunk at least; False if refused, and why is counted.

        Pinning takes about a second per GiB: call it while planning, never inside a search.
        """
        if slabs <= self.free:
            return True
        missing, reading = slabs - self.free, self.read()
        chunk = min(max(missing, self.chunk_bytes // self.slab_bytes), max(missing, self.ceiling - self.capacity))
        growth = chunk if self._veto(chunk, reading) == "None" else missing
        veto = self._veto(growth, reading)
        if veto != "None":
            self.counters.last_veto = veto
            self.counters.last_wanted_bytes = missing * self.slab_bytes
            self.counters.last_available_bytes = 0 if reading is None else reading.available_bytes
            self.counters.grow_refusals += 1
            self.counters.policy_refusals += 1
            self.counters.ram_refusals += veto in ("Reserve", "InvalidReading")
            return False
        if not self._pin(growth):
            self.counters.grow_refusals += 1
            self.counters.pin_failures += 1
            return False
        self.counters.grows += 1
        self.counters.post_grow_failures += slabs > self.free
        return True

    def shrink_idle(self) -> int:
        """Unpin whole free chunks from the end, never the first; bytes returned."""
        returned = 0
        while len(self._chunks) > 1 and self._free[self.capacity - self._chunks[-1] :].all():
            slabs = self._chunks.pop()
            self._free = self._free[: self.capacity - slabs].copy()
            self.free -= slabs
            self.backend.unpin(len(self._chunks))
            returned += slabs * self.slab_bytes
        return returned

    def check(self) -> None:
        """Raise InvariantError if counts and map disagree."""
        if sum(self._chunks) != self.capacity or int(self._free.sum()) != self.free:
            raise InvariantError(f"host slabs: {self._chunks} in chunks, {self.capacity} mapped, {self.free} free")
        if self.capacity * self.slab_bytes > self.limits.ceiling_bytes:
            raise InvariantError(f"{self.capacity} host slabs are pinned beyond the ceiling of {self.ceiling}")

    def _veto(self, growth: int, reading: HostMemory | None) -> Veto:
        return veto_growth(growth * self.slab_bytes, self.capacity * self.slab_bytes, self.limits, reading)

    def _pin(self, slabs: int) -> bool:
        if not self.backend.pin(len(self._chunks), slabs * self.slab_bytes):
            return False
        self._chunks.append(slabs)
        self._free = np.concatenate((self._free, np.ones(slabs, np.bool_)))
        self.free += slabs
        return True
