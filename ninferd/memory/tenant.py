"""A running sequence's part of the caches: its pages in order, its state, and the tokens behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.errors import InvariantError
from ninferd.memory.geometry import pages_for
from ninferd.memory.identity import Ledger, Tokens
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.pages import PageIds, PageReservation
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.state_images import StateImage
from ninferd.memory.taps import PromptOutline, Tap

Phase = Literal["moving", "restoring", "ready", "gone"]


@dataclass(frozen=True)
class Request:
    """What memory must know of a request."""

    prompt: Tokens
    cache_tokens: int  # positions it may ever use, prompt included; reserved whole
    session: str = ""
    outline: PromptOutline = field(default_factory=PromptOutline)
    retain: bool = True  # False: nothing of it is kept, and nothing is reused

    @property
    def pages(self) -> int:
        """Its entitlement."""
        return pages_for(self.cache_tokens)


@dataclass(eq=False)
class Tenant:
    """Made by ``MemorySystem.admit``. ``moving``: room is being made; ``restoring``: its prefix is coming back."""

    request: Request
    order: int  # of admission
    source: Snapshot | None
    lineage: int
    reservation: PageReservation
    phase: Phase = "moving"
    ledger: Ledger = field(init=False)
    handles: Handles = field(default_factory=lambda: NO_HANDLES)
    shared: int = 0  # leading pages that it never writes
    frontier: int = 0  # execution frontier: positions with keys, values and state
    image: StateImage | None = None
    taps: tuple[Tap, ...] = ()
    last_tap: Snapshot | None = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.request.prompt)

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that are not computed again."""
        return 0 if self.source is None else self.source.frontier

    @property
    def state_slot(self) -> int:
        """Device slot of its recurrent state."""
        assert self.image is not None
        return self.image.slot

    def device_pages(self, pages: LogicalPages) -> PageIds:
        """Physical pages in logical order, int32: its page table."""
        return pages.device[pages.ids(self.handles)]

    def ensure_mapped(self, pages: LogicalPages, end: int) -> PageIds:
        """Map pages until position ``end - 1`` is covered; the new ones. More than it is entitled to is an error."""
        missing = pages_for(end) - len(self.handles)
        if missing <= 0:
            return np.zeros(0, np.int32)
        after = int(pages.device[pages.ids(self.handles[-1:])][0]) if len(self.handles) else None
        added = pages.create(missing, self.reservation, after)
        self.handles = np.concatenate((self.handles, added))
        return pages.device[pages.ids(added)]

    def commit(self, frontier: int) -> None:
        """Positions before ``frontier`` are final: computed, accepted, and in the ledger."""
        if not self.frontier <= frontier <= min(len(self.ledger), PAGE_TOKENS * len(self.handles)):
            raise InvariantError(
                f"a frontier of {frontier} after {self.frontier}, with {len(self.ledger)} tokens known and "
                f"{len(self.handles)} pages mapped"
            )
        self.frontier = frontier

    def freeze_blocks(self, pages: LogicalPages) -> Handles:
        """End writing of all pages before the frontier that are full; all full pages."""
        blocks = self.frontier // PAGE_TOKENS
        if blocks > self.shared:
            full = self.handles[self.shared : blocks]
            pages.commit_columns(full, PAGE_TOKENS)
            pages.freeze(full)
            self.shared = blocks
        return self.handles[:blocks]
