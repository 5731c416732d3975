"""Which prefixes are cached: a radix tree of 64-token blocks with sparse snapshots of the recurrent state.

Equality is always decided on the tokens themselves. A segment exists for the snapshots at its end or below; when the
last of them goes, it goes too, so there is never a key or value that nothing can resume from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.errors import InvariantError
from ninferd.memory.identity import IdentityTag, Tokens
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.segment import BlockDigest, Segment, first_block_digest
from ninferd.memory.snapshots import Match, Snapshot


class PrefixTree:
    """Segments and snapshots of one identity; holds one reference on every page it names."""

    def __init__(self, tag: IdentityTag, pages: LogicalPages, digest: BlockDigest = hash) -> None:
        self.tag = tag
        self._pages = pages
        self._digest = digest
        self._time = 0
        self.root = Segment(0, Tokens.of_text([]))

    @property
    def live(self) -> int:
        """Snapshots in the tree."""
        return self.root.live_below

    def match(self, prompt: Tokens) -> Match:
        """Longest common prefix and every usable snapshot on it that leaves a token to compute. Changes nothing."""
        segment, found = self.root, list[Snapshot]()
        deepest = self._matching_tails(segment, prompt, found)
        parts, blocks = list[Handles](), 0
        while True:
            child, equal = self._best_child(segment, prompt)
            if child is None:
                deepest = max(deepest, self._shared_with_children(segment, prompt))
                break
            deepest = max(deepest, child.first * PAGE_TOKENS + equal)
            whole = min(equal // PAGE_TOKENS, len(child.pages))
            parts.append(child.pages[:whole])
            blocks = child.first + whole
            if whole < len(child.pages):
                break
            segment = child
            deepest = max(deepest, self._matching_tails(segment, prompt, found))
        found.sort(key=lambda snapshot: -snapshot.frontier)
        return Match(deepest, blocks, tuple(found), np.concatenate(parts) if parts else NO_HANDLES)

    def known(self, tokens: Tokens, frontier: int) -> Snapshot | None:
        """The snapshot at exactly this frontier of these tokens, usable or not yet."""
        segment, blocks = self.root, frontier // PAGE_TOKENS
        while segment.end < blocks:
            child, equal = self._best_child(segment, tokens)
            if child is None or equal < len(child.tokens) or child.end > blocks:
                return None
            segment = child
        return self.find(segment, tokens, frontier)

    def insert(self, tokens: Tokens, pages: Handles) -> Segment:
        """The segment that ends with the last of ``pages``, logical pages of the first blocks of ``tokens``.

        Blocks that the tree has keep the tree's pages; the others are shared with the caller. The caller attaches a
        snapshot at once: a segment without one has no reason to exist.
        """
        segment, blocks = self.root, len(pages)
        while segment.end < blocks:
            child, equal = self._best_child(segment, tokens)
            whole = 0 if child is None else min(equal // PAGE_TOKENS, len(child.pages), blocks - child.first)
            if child is None or whole == 0:
                rest = tokens.part(segment.end * PAGE_TOKENS, blocks * PAGE_TOKENS)
                added = Segment(segment.end, rest, pages[segment.end : blocks].copy())
                self._pages.share(added.pages)
                segment.adopt(added, self._digest)
                return added
            segment = child if whole == len(child.pages) else self._split(child, whole)
        return segment

    def find(self, segment: Segment, tokens: Tokens, frontier: int) -> Snapshot | None:
        """The snapshot at ``frontier`` of ``tokens``, whose full blocks end with ``segment``."""
        offset = segment.end * PAGE_TOKENS
        for snapshot in segment.snapshots:
            if snapshot.frontier == frontier and tokens.common_prefix(offset, snapshot.tail) == frontier - offset:
                return snapshot
        return None

    def attach(self, segment: Segment, snapshot: Snapshot) -> None:
        """Publish a snapshot; it brings its references on its tail page and its image with it."""
        snapshot.segment = segment
        segment.snapshots.append(snapshot)
        self._count(segment, 1)
        self.touch(snapshot)

    def detach(self, snapshot: Snapshot) -> None:
        """Remove a snapshot, its tail page, and the segments that existed for it alone; the image is the caller's."""
        segment = snapshot.anchored
        if snapshot.pins:
            raise InvariantError("a snapshot that an admission resumes from cannot be removed")
        segment.snapshots.remove(snapshot)
        snapshot.segment = None
        self._pages.release(snapshot.tail_page)
        self._count(segment, -1)
        while segment.parent is not None and segment.live_below == 0:
            parent = segment.parent
            parent.disown(segment, self._digest)
            self._pages.release(segment.pages)
            segment = parent
        self._join(segment)

    def touch(self, snapshot: Snapshot) -> None:
        """Now is its last use, and that of all before it."""
        self._time += 1
        snapshot.last_used = self._time
        for segment in snapshot.anchored.path():
            segment.last_used = self._time

    def segments(self) -> Iterator[Segment]:
        """All segments but the root, parents before children."""
        stack = list(self.root.offspring())
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(segment.offspring())

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots."""
        yield from self.root.snapshots
        for segment in self.segments():
            yield from segment.snapshots

    def check(self) -> None:
        """Raise InvariantError unless counts, links and ranges agree."""
        for segment in (self.root, *self.segments()):
            below = len(segment.snapshots) + sum(child.live_below for child in segment.offspring())
            if below != segment.live_below or (below == 0 and segment is not self.root):
                raise InvariantError(f"{below} snapshots at or below block {segment.end}, {segment.live_below} counted")
            if len(segment.tokens) != PAGE_TOKENS * len(segment.pages):
                raise InvariantError("a segment with more or fewer tokens than pages")
            if any(child.parent is not segment or child.first != segment.end for child in segment.offspring()):
                raise InvariantError("a segment that does not continue its parent")
            for snapshot in segment.snapshots:
                if snapshot.segment is not segment or snapshot.frontier != segment.end * PAGE_TOKENS + len(
                    snapshot.tail
                ):
                    raise InvariantError("a snapshot at another place than its frontier")
                if len(snapshot.tail_page) != (len(snapshot.tail) > 0):
                    raise InvariantError("a tail without its page")
                if (self._pages.columns[self._pages.ids(snapshot.tail_page)] != len(snapshot.tail)).any():
                    raise InvariantError("a tail page with more or fewer committed positions than the tail")
            if (self._pages.columns[self._pages.ids(segment.pages)] != PAGE_TOKENS).any():
                raise InvariantError("a page in the tree that is not full")

    def _best_child(self, segment: Segment, tokens: Tokens) -> tuple[Segment | None, int]:
        """The child that shares the most tokens, and how many."""
        offset = segment.end * PAGE_TOKENS
        best: tuple[Segment | None, int] = (None, 0)
        if len(tokens) - offset >= PAGE_TOKENS:
            for child in segment.children.get(first_block_digest(tokens, offset, self._digest), ()):
                equal = tokens.common_prefix(offset, child.tokens)
                if equal > best[1]:
                    best = (child, equal)
        return best

    @staticmethod
    def _shared_with_children(segment: Segment, prompt: Tokens) -> int:
        """How far the prompt follows any child, where it follows none for a whole block."""
        offset = segment.end * PAGE_TOKENS
        return max((offset + prompt.common_prefix(offset, child.tokens) for child in segment.offspring()), default=0)

    @staticmethod
    def _matching_tails(segment: Segment, prompt: Tokens, found: list[Snapshot]) -> int:
        """Collect the usable snapshots at the end of ``segment``; the longest prefix of the prompt among all."""
        offset, deepest = segment.end * PAGE_TOKENS, 0
        for snapshot in segment.snapshots:
            equal = prompt.common_prefix(offset, snapshot.tail)
            deepest = max(deepest, offset + equal)
            complete = equal == len(snapshot.tail) and snapshot.frontier < len(prompt)
            if complete and snapshot.usable and not prompt.splits_media(snapshot.frontier):
                found.append(snapshot)
        return deepest

    def _split(self, lower: Segment, blocks: int) -> Segment:
        """Cut the first ``blocks`` off into a new parent of ``lower``, which keeps its snapshots and children."""
        parent = lower.parent
        assert parent is not None
        parent.disown(lower, self._digest)
        cut, length = blocks * PAGE_TOKENS, len(lower.tokens)
        start = lower.first * PAGE_TOKENS
        upper = Segment(lower.first, _rebased(lower.tokens, start, 0, cut), lower.pages[:blocks].copy())
        upper.live_below, upper.last_used = lower.live_below, lower.last_used
        lower.tokens = _rebased(lower.tokens, start, cut, length)
        lower.pages, lower.first = lower.pages[blocks:].copy(), lower.first + blocks
        parent.adopt(upper, self._digest)
        upper.adopt(lower, self._digest)
        return upper

    def _join(self, upper: Segment) -> None:
        """Undo a split that nothing needs any more: an only child takes over its parent's blocks."""
        only = list(upper.offspring())
        if upper.parent is None or upper.snapshots or len(only) != 1:
            return
        parent, lower = upper.parent, only[0]
        parent.disown(upper, self._digest)
        media = dict.fromkeys((*upper.tokens.media, *lower.tokens.media))
        ids = np.concatenate((upper.tokens.ids, lower.tokens.ids))
        types = np.concatenate((upper.tokens.types, lower.tokens.types))
        lower.tokens = Tokens(ids, types, tuple(media))
        lower.pages, lower.first = np.concatenate((upper.pages, lower.pages)), upper.first
        parent.adopt(lower, self._digest)

    @staticmethod
    def _count(segment: Segment, change: int) -> None:
        at: Segment | None = segment
        while at is not None:
            at.live_below += change
            at = at.parent


def _rebased(tokens: Tokens, start: int, begin: int, end: int) -> Tokens:
    """Tokens [begin, end) of a part that began at token ``start`` of its sequence; media keep their positions."""
    inside = tuple(item for item in tokens.media if item.start < start + end and item.end > start + begin)
    return Tokens(tokens.ids[begin:end].copy(), tokens.types[begin:end].copy(), inside)
