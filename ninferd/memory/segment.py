"""Nodes of the prefix tree: runs of 64-token blocks without a branch or a snapshot inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.identity import Tokens
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.snapshots import Snapshot

BlockDigest = Callable[[bytes], int]


@dataclass(eq=False, slots=True)
class Segment:
    """``pages`` hold ``tokens``, which begin at block ``first`` of the sequence. The root has none of either."""

    first: int
    tokens: Tokens
    pages: Handles = field(default_factory=lambda: NO_HANDLES)
    parent: Segment | None = None
    children: dict[int, list[Segment]] = field(default_factory=dict)  # by digest of the child's first block
    snapshots: list[Snapshot] = field(default_factory=list)
    live_below: int = 0  # snapshots here and in all descendants
    last_used: int = 0

    @property
    def end(self) -> int:
        """Blocks from the root to the end of this segment."""
        return self.first + len(self.pages)

    def offspring(self) -> Iterator[Segment]:
        """Children in the order of their insertion."""
        for children in self.children.values():
            yield from children

    def subtree(self) -> Iterator[Snapshot]:
        """Snapshots here and below. Without recursion: a conversation of forks is as deep as it is long."""
        stack = [self]
        while stack:
            segment = stack.pop()
            yield from segment.snapshots
            stack.extend(segment.offspring())

    def path(self) -> Iterator[Segment]:
        """This segment and its ancestors, upward, without the root."""
        segment: Segment | None = self
        while segment is not None and segment.parent is not None:
            yield segment
            segment = segment.parent

    def path_pages(self) -> Handles:
        """Logical pages from the root to the end of this segment."""
        parts = [segment.pages for segment in self.path()]
        return np.concatenate(parts[::-1]) if parts else NO_HANDLES

    def adopt(self, child: Segment, digest: BlockDigest) -> None:
        """Hang ``child`` below this segment."""
        child.parent = self
        self.children.setdefault(first_block_digest(child.tokens, 0, digest), []).append(child)

    def disown(self, child: Segment, digest: BlockDigest) -> None:
        """Take ``child`` out of the children."""
        key = first_block_digest(child.tokens, 0, digest)
        siblings = self.children[key]
        siblings.remove(child)
        if not siblings:
            del self.children[key]


def first_block_digest(tokens: Tokens, offset: int, digest: BlockDigest) -> int:
    """Digest of the block at token ``offset``; it selects children, it never decides equality."""
    return digest(tokens.ids[offset : offset + PAGE_TOKENS].tobytes())
