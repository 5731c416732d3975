"""The prefix tree: matching, branching, tails, pruning, and random traces against a list of prefixes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import HostSlabs
from ninferd.memory.identity import IdentityTag, MediaItem, Tokens
from ninferd.memory.logical_pages import LogicalPages
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.prefix_tree import PrefixTree
from ninferd.memory.segment import BlockDigest
from ninferd.memory.snapshots import Snapshot
from ninferd.memory.state_images import StateImages
from tests.memory.fakes import make_pages, reserve

TAG = IdentityTag("model", "nvfp4")


class Shelf:
    """A tree with the stores below it, filled by prefixes that were "computed" elsewhere."""

    def __init__(self, digest: BlockDigest = hash) -> None:
        self.pages: LogicalPages = make_pages(400, 8)
        self.slabs: HostSlabs = self.pages.slabs
        self.images = StateImages(64, self.slabs, 1)
        self.tree = PrefixTree(TAG, self.pages, digest)

    def put(self, tokens: Tokens, frontier: int) -> Snapshot:
        """Publish a snapshot at ``frontier``, as the run of a request would."""
        blocks, tail = divmod(frontier, 64)
        written = self._write(blocks, 64)
        segment = self.tree.insert(tokens, written)
        self.pages.release(written)
        tail_page = self._write(1, tail) if tail else NO_HANDLES
        image = self.images.acquire()
        assert image is not None
        self.images.freeze(image)
        snapshot = Snapshot(frontier, tokens.part(blocks * 64, frontier), tail_page, image, "endpoint", 1)
        self.tree.attach(segment, snapshot)
        return snapshot

    def drop(self, snapshot: Snapshot) -> None:
        self.tree.detach(snapshot)
        self.images.release(snapshot.image)

    def check(self) -> None:
        self.tree.check()
        self.pages.check()
        self.images.check()

    def _write(self, count: int, columns: int) -> Handles:
        handles = self.pages.create(count, reserve(self.pages.pool, count))
        self.pages.commit_columns(handles, columns)
        self.pages.freeze(handles)
        self.pages.deactivate(handles)
        return handles


def _text(*parts: tuple[int, int]) -> Tokens:
    """Tokens as (value, count) runs."""
    return Tokens.of_text(np.concatenate([np.full(count, value, np.int32) for value, count in parts]))


def _frontiers(shelf: Shelf, prompt: Tokens) -> list[int]:
    return [snapshot.frontier for snapshot in shelf.tree.match(prompt).snapshots]


def test_an_empty_tree_matches_nothing() -> None:
    match = Shelf().tree.match(_text((1, 200)))
    assert (match.tokens, match.blocks, match.best_frontier, match.snapshots) == (0, 0, 0, ())


def test_a_snapshot_serves_every_continuation_of_its_tokens() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 139)), 139)
    match = shelf.tree.match(_text((1, 139), (2, 51)))
    assert (match.best_frontier, match.blocks, match.tokens) == (139, 2, 139)
    assert len(match.pages) == 2
    assert _frontiers(shelf, _text((1, 138), (2, 51))) == []
    assert shelf.tree.match(_text((1, 138), (2, 51))).tokens == 138


def test_s05_a_prompt_that_ends_at_the_frontier_leaves_nothing_to_compute() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 130)), 130)
    assert _frontiers(shelf, _text((1, 130))) == []
    assert _frontiers(shelf, _text((1, 131))) == [130]


def test_s06_the_deepest_snapshot_before_the_divergence_and_how_far_the_match_went() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 139)), 64)
    shelf.put(_text((1, 139)), 139)
    match = shelf.tree.match(_text((1, 100), (2, 60)))
    assert (match.best_frontier, match.tokens, match.blocks) == (64, 100, 1)


def test_candidates_come_deepest_first() -> None:
    shelf = Shelf()
    for frontier in (64, 300, 10, 192, 200):
        shelf.put(_text((1, 400)), frontier)
    assert _frontiers(shelf, _text((1, 301))) == [300, 200, 192, 64, 10]
    shelf.check()


def test_two_conversations_share_the_blocks_of_their_prefix() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 128), (2, 128)), 256)
    shelf.put(_text((1, 128), (3, 128)), 256)
    assert shelf.pages.pool.allocated == 6
    assert len(list(shelf.tree.segments())) == 3
    assert _frontiers(shelf, _text((1, 128), (3, 129))) == [256]
    shelf.check()


def test_what_only_one_snapshot_needed_goes_with_it_and_the_rest_joins() -> None:
    shelf = Shelf()
    first = shelf.put(_text((1, 128), (2, 128)), 256)
    second = shelf.put(_text((1, 128), (3, 130)), 258)
    shelf.drop(first)
    assert shelf.pages.pool.allocated == 5  # four blocks and a tail
    assert len(list(shelf.tree.segments())) == 1
    shelf.check()
    assert _frontiers(shelf, _text((1, 128), (3, 131))) == [258]
    shelf.drop(second)
    assert (shelf.pages.live, shelf.tree.live, list(shelf.tree.segments())) == (0, 0, [])


def test_a_snapshot_inside_a_longer_one_splits_and_joins() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 320)), 320)
    inner = shelf.put(_text((1, 320)), 128)
    assert shelf.pages.pool.allocated == 5
    shelf.drop(inner)
    assert len(list(shelf.tree.segments())) == 1
    assert shelf.tree.match(_text((1, 321))).blocks == 5
    shelf.check()


def test_a_frontier_below_one_block_lives_at_the_root() -> None:
    shelf = Shelf()
    snapshot = shelf.put(_text((1, 20)), 20)
    assert _frontiers(shelf, _text((1, 20), (2, 5))) == [20]
    shelf.drop(snapshot)
    assert shelf.pages.live == 0
    shelf.check()


def test_tails_are_compared_exactly() -> None:
    shelf = Shelf()
    shelf.put(_text((1, 64), (2, 10)), 74)
    shelf.put(_text((1, 64), (3, 10)), 74)
    match = shelf.tree.match(_text((1, 64), (3, 50)))
    assert [snapshot.tail.ids[0] for snapshot in match.snapshots] == [3]
    segment = match.snapshots[0].anchored
    assert shelf.tree.find(segment, _text((1, 64), (3, 50)), 74) is match.snapshots[0]
    assert shelf.tree.find(segment, _text((1, 64), (4, 50)), 74) is None
    assert shelf.tree.find(segment, _text((1, 64), (3, 50)), 73) is None


@pytest.mark.parametrize("digest", [hash, lambda block: 0], ids=["digest", "constant digest"])
def test_s08_digests_select_but_never_decide(digest: BlockDigest) -> None:
    shelf = Shelf(digest)
    for value in range(2, 8):
        shelf.put(_text((1, 64), (value, 70)), 134)
        shelf.put(_text((value, 70)), 70)
    for value in range(2, 8):
        assert _frontiers(shelf, _text((1, 64), (value, 100))) == [134]
        assert _frontiers(shelf, _text((value, 100))) == [70]
    assert _frontiers(shelf, _text((1, 64), (9, 100))) == []
    shelf.check()


def test_s07_media_decide_and_nothing_resumes_inside_an_image() -> None:
    def prompt(item: MediaItem) -> Tokens:
        base = _text((1, 70), (9, 40), (2, 90))
        types = np.zeros(200, np.uint8)
        types[70:110] = 1
        return Tokens(base.ids, types, (item,))

    cat = MediaItem(b"cat", "image", (1, 4, 10), 70, 110)
    shelf = Shelf()
    for frontier in (64, 128, 190):
        shelf.put(prompt(cat), frontier)
    assert _frontiers(shelf, prompt(cat)) == [190, 128, 64]
    match = shelf.tree.match(prompt(replace(cat, digest=b"dog")))
    assert ([s.frontier for s in match.snapshots], match.tokens) == ([64], 70)
    shelf.put(prompt(replace(cat, digest=b"dog")), 190)
    assert _frontiers(shelf, prompt(replace(cat, digest=b"dog"))) == [190, 64]
    shelf.put(prompt(replace(cat, start=120, end=150)), 80)  # ends in the middle of the cat
    assert 80 not in _frontiers(shelf, prompt(cat))
    shelf.check()


def test_an_image_without_a_complete_copy_is_not_offered() -> None:
    shelf = Shelf()
    snapshot = shelf.put(_text((1, 64)), 64)
    slot, snapshot.image.slot = snapshot.image.slot, -1
    assert _frontiers(shelf, _text((1, 65))) == []
    snapshot.image.slot = slot
    assert _frontiers(shelf, _text((1, 65))) == [64]


def test_touching_a_snapshot_touches_its_path_alone() -> None:
    shelf = Shelf()
    first = shelf.put(_text((1, 128), (2, 64)), 192)
    second = shelf.put(_text((1, 128), (3, 64)), 192)
    shelf.tree.touch(first)
    assert first.last_used > second.last_used
    assert [s.last_used for s in first.anchored.path()] == [first.last_used] * 2
    assert second.anchored.last_used == second.last_used


def test_a_snapshot_in_use_stays() -> None:
    shelf = Shelf()
    snapshot = shelf.put(_text((1, 64)), 64)
    snapshot.pins = 1
    with pytest.raises(InvariantError, match="resumes"):
        shelf.tree.detach(snapshot)


@st.composite
def _conversations(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Sequences of few values in runs of odd lengths, so that they branch inside blocks, and a frontier in each."""
    made = []
    for _ in range(draw(st.integers(1, 8))):
        runs = draw(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([30, 64, 100])), min_size=1, max_size=6))
        ids = [value for value, count in runs for _ in range(count)]
        made.append((ids, draw(st.integers(1, len(ids)))))
    return made


@settings(max_examples=120, deadline=None)
@given(conversations=_conversations(), data=st.data())
def test_the_tree_agrees_with_a_list_of_prefixes(
    conversations: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    shelf, kept = Shelf(), list[tuple[list[int], Snapshot]]()
    for ids, frontier in conversations:
        if any(prefix == ids[:frontier] for prefix, _ in kept):
            continue
        kept.append((ids[:frontier], shelf.put(Tokens.of_text(ids), frontier)))
        if len(kept) > 1 and data.draw(st.booleans()):
            shelf.drop(kept.pop(data.draw(st.integers(0, len(kept) - 1)))[1])
        shelf.check()
        for prompt, _ in conversations:
            expected = sorted((len(p) for p, _ in kept if len(p) < len(prompt) and prompt[: len(p)] == p), reverse=True)
            match = shelf.tree.match(Tokens.of_text(prompt))
            assert [snapshot.frontier for snapshot in match.snapshots] == expected
            shared = max((_equal(p, prompt) for p, _ in kept), default=0)
            assert match.tokens == shared
    for _, snapshot in kept:
        shelf.drop(snapshot)
    assert (shelf.pages.live, shelf.images.free) == (0, 64)


def _equal(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
