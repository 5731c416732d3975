"""What the memory system asks of the device: copies. The bytes, streams and events are the implementation's.

Order: a copy on the compute stream follows all work submitted before it and precedes all submitted after. A transfer
starts after all work submitted before it, runs beside later work, and is complete when ``landed`` reports it; until
then its source must not be written and its destination not be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ninferd.memory.host_slabs import Slabs
from ninferd.memory.pages import PageIds

Direction = Literal["d2h", "h2d"]


@dataclass(frozen=True)
class StateCopy:
    """One state image: a device slot and the slabs of its host copy, in order."""

    slot: int
    slabs: Slabs


@dataclass(frozen=True)
class Transfer:
    """One batch between device and host: page i and slab i belong together."""

    direction: Direction
    pages: PageIds
    slabs: Slabs
    states: tuple[StateCopy, ...] = ()
    holds_compute: bool = False  # work submitted later waits for it: the source is about to be written


@dataclass(frozen=True)
class Landed:
    """The end of a transfer."""

    ticket: int
    seconds: float
    failed: bool = False  # nothing of it may be used
    bad_slabs: frozenset[int] = frozenset()  # sources whose checksum was wrong; all else arrived


class Copies(Protocol):
    """Implemented by the device, and by the hash model of the tests."""

    def start(self, transfer: Transfer) -> int:
        """Begin a transfer on its own stream; its ticket. MemoryError if it cannot begin."""
        ...

    def landed(self) -> list[Landed]:
        """Transfers that ended since the last call; never waits."""
        ...

    def copy_page(self, source: int, destination: int) -> None:
        """Whole page within the device, on the compute stream."""
        ...

    def copy_state(self, source: int, destination: int) -> None:
        """State slot within the device, on the compute stream."""
        ...

    def reset_state(self, slot: int) -> None:
        """The state of an empty sequence, on the compute stream."""
        ...
