"""A resumable point of a conversation: the pages before it, the tokens of the partial page, and the recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ninferd.memory.identity import Tokens
from ninferd.memory.page_columns import Handles
from ninferd.memory.state_images import StateImage

if TYPE_CHECKING:
    from ninferd.memory.segment import Segment

SnapshotKind = Literal["endpoint", "turn_closure", "response_replay", "long_anchor", "shared_stable_prefix"]
SHARED: Final = 0  # lineage of snapshots that belong to no conversation


@dataclass(eq=False, slots=True)
class Snapshot:
    """Attached to the end of the segment that holds its last full page; at most one per (segment, tail)."""

    frontier: int  # tokens processed: the next one to run has this position
    tail: Tokens  # the 0..63 tokens after the last full page
    tail_page: Handles  # their page, private to this snapshot; empty if frontier is a multiple of 64
    image: StateImage
    kind: SnapshotKind
    lineage: int  # conversation it belongs to, or SHARED
    session: str = ""
    hits: int = 0
    last_used: int = 0  # logical time of publication or of the last hit
    age: float = 0.0  # of the value clock at its publication or last hit
    superseded: bool = False  # a deeper one of the same conversation made it unlikely to be asked for again
    pins: int = 0  # admissions under way that resume from it
    segment: Segment | None = None  # None before it is attached and after it is gone

    @property
    def usable(self) -> bool:
        """Whether a request can resume from it now."""
        return self.segment is not None and self.image.settled

    @property
    def anchored(self) -> Segment:
        """The segment of an attached snapshot."""
        assert self.segment is not None
        return self.segment


@dataclass(frozen=True, slots=True)
class Match:
    """What a tree knows of a prompt."""

    tokens: int  # longest prefix that any entry shares with the prompt, resumable or not
    blocks: int  # full pages of it that the tree holds
    snapshots: tuple[Snapshot, ...]  # usable, with frontier < prompt length, deepest first
    pages: Handles  # logical pages of the ``blocks``

    @property
    def best_frontier(self) -> int:
        """Deepest point to resume from."""
        return self.snapshots[0].frontier if self.snapshots else 0
