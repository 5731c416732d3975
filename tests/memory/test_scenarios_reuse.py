"""Scenarios S-01 to S-15 of the specification: reuse and identity.

Every answer is compared with a cold run inside the engine of the hash model. The geometry, unless a test says
otherwise: 32 device pages, 2 lanes, 4 device images, a chunk of 256 tokens, and a host with room for everything.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ninferd.memory.identity import MediaItem, Tokens
from ninferd.memory.segment import BlockDigest
from ninferd.memory.taps import PromptOutline
from tests.memory.hash_engine import HashEngine, Job


def _hit(job: Job) -> tuple[int, int]:
    """(tokens reused, tokens computed) of a prompt."""
    return job.cached, job.computed


def test_s01_a_cold_request() -> None:
    engine = HashEngine()
    job = engine.run([1] * 130, 10, "a")
    assert _hit(job) == (0, 130)
    assert engine.counters.cache_reuse.root_selections == 1
    assert (engine.stores.pool.allocated, 4 - engine.stores.images.free) == (3, 1)  # 139 positions
    assert engine.stores.lineages == {1: 1}
    # Written through when it ended: 3 pages and its image.
    assert engine.counters.kv_transfers.main_kv_d2h_pages == engine.counters.pressure.spill_pages == 3
    assert engine.counters.state_transfers.state_d2h_count == 1


def test_s02_the_next_turn_of_a_session_moves_what_is_there() -> None:
    engine = HashEngine()
    first = engine.run([1] * 130, 10, "a")
    second = engine.run(first.turn([2] * 50), 1, "a")
    assert _hit(second) == (139, 51)
    state = engine.counters.state_transfers
    assert (state.state_moves, state.state_forks, state.state_restores) == (1, 0, 0)
    assert (state.state_d2d_count, state.state_h2d_count) == (0, 0)
    assert engine.counters.pressure.partial_tail_cow_pages == 0
    assert engine.counters.cache_reuse.private_endpoint_selections == 1
    assert engine.stores.lineages == {1: 2}  # one conversation; its older snapshot lives on on the host
    assert engine.counters.superseded == 1
    # 190 positions: pages 0 and 1 were on the host already, page 2 is new.
    assert engine.counters.kv_transfers.main_kv_d2h_pages == 3 + 1


def test_s03_another_session_forks_and_leaves_the_original() -> None:
    engine = HashEngine()
    first = engine.run([1] * 130, 10, "a")
    second = engine.submit(first.turn([2] * 50), 20, "b")
    while len(second.made) < 10:
        engine.step()
    pages = engine.stores.pages
    assert pages.refs[pages.ids(second.held.handles)].tolist() == [2, 2, 1, 1]  # 200 positions
    engine.drain()
    assert _hit(second) == (139, 51)
    assert engine.counters.state_transfers.state_forks == 1
    assert engine.counters.cache_reuse.historical_fork_hits == 1
    assert engine.counters.pressure.partial_tail_cow_pages == 1
    assert engine.stores.lineages == {1: 1, 2: 1}
    assert _hit(engine.run(first.turn([3] * 9), 1, "a")) == (139, 10)


def test_s04_a_fork_at_a_page_boundary_copies_nothing() -> None:
    engine = HashEngine()
    first = engine.run([1] * 120, 9, "a")
    second = engine.run(first.turn([2] * 50), 1, "b")
    assert _hit(second) == (128, 51)
    assert engine.counters.pressure.partial_tail_cow_pages == 0
    assert engine.counters.kv_transfers.main_kv_d2d_pages == 0


def test_s05_a_frontier_must_leave_a_token_to_compute() -> None:
    engine = HashEngine()
    ids = list(range(200))
    engine.run(ids, 1, outline=PromptOutline(client_markers=(130,)))
    assert _hit(engine.run(ids[:130], 1)) == (0, 130)
    assert _hit(engine.run(ids[:131], 1)) == (130, 1)
    assert engine.counters.cache_reuse.shared_stable_prefix_selections == 1


def test_s06_the_deepest_snapshot_before_the_difference() -> None:
    engine = HashEngine()
    ids = list(range(139))
    engine.run(ids, 1, outline=PromptOutline(client_markers=(64,)))
    changed = [*ids[:100], *([7] * 60)]
    match = engine.stores.tree.match(Tokens.of_text(changed))
    assert (match.tokens, match.best_frontier) == (100, 64)
    assert _hit(engine.run(changed, 1)) == (64, 96)


def test_s07_another_image_behind_the_same_placeholders_is_computed() -> None:
    def prompt(digest: bytes, question: int) -> Tokens:
        ids = np.array([1] * 100 + [9] * 60 + [2] * 40 + [question] * 20, np.int32)
        types = np.zeros(220, np.uint8)
        types[100:160] = 1
        return Tokens(ids, types, (MediaItem(digest, "image", (1, 6, 10), 100, 160),))

    engine = HashEngine()
    outline = PromptOutline(client_markers=(64, 130, 200))  # 130 lies inside the image: never a snapshot
    engine.run(prompt(b"cat!", 3), 5, outline=outline)
    assert sorted(s.frontier for s in engine.stores.tree.snapshots()) == [64, 200, 224]
    assert _hit(engine.run(prompt(b"dog!", 3), 5)) == (64, 156)
    assert _hit(engine.run(prompt(b"cat!", 4), 5)) == (200, 20)


def _conversations(digest: BlockDigest) -> list[tuple[int, list[int]]]:
    engine = HashEngine(digest=digest)
    jobs = []
    for topic in range(4):
        first = engine.run([1] * 64 + [topic] * 80, 5, f"s{topic}", outline=PromptOutline(system_end=64))
        jobs += [first, engine.run(first.turn([8] * 10), 5, f"s{topic}")]
    return [(job.cached, job.made) for job in jobs]


def test_s08_a_constant_digest_changes_nothing() -> None:
    plain = _conversations(hash)
    assert plain == _conversations(lambda block: 0)
    assert [cached for cached, _ in plain] == [0, 148, 64, 148, 64, 148, 64, 148]


def _chat(engine: HashEngine, turns: int, *, keeps_reasoning: bool) -> list[Job]:
    """A conversation with reasoning; what the client sends back contains it or not."""
    jobs: list[Job] = []
    history = [5] * 100
    for turn in range(turns):
        history = [*history, *([20 + turn] * 30)]
        prompt = [*history, 77, 78, 79]  # the opener of the assistant's block
        outline = PromptOutline(
            opener=len(prompt) if keeps_reasoning else len(history),
            opener_kind="response_replay" if keeps_reasoning else "turn_closure",
        )
        job = engine.run(prompt, 40, "chat", outline=outline)
        jobs.append(job)
        answer = job.made if keeps_reasoning else job.made[25:]
        history = [*prompt, *answer]
    return jobs


def test_s09_a_client_that_drops_reasoning_resumes_at_the_turn_boundary() -> None:
    engine = HashEngine()
    jobs = _chat(engine, 8, keeps_reasoning=False)
    reuse = engine.counters.cache_reuse
    assert (reuse.root_selections, reuse.private_turn_closure_selections, reuse.private_endpoint_selections) == (
        1,
        7,
        0,
    )
    for before, job in itertools.pairwise(jobs):
        boundary = len(before.tokens) - 3
        assert job.cached == boundary
        assert job.tokens.ids[:boundary].tolist() == before.tokens.ids[:boundary].tolist()


def test_s10_a_client_that_echoes_computes_only_what_is_new() -> None:
    engine = HashEngine()
    jobs = _chat(engine, 8, keeps_reasoning=True)
    reuse = engine.counters.cache_reuse
    assert (reuse.root_selections, reuse.private_endpoint_selections) == (1, 7)
    # The last generated token, 30 of the user, and the opener.
    assert [job.computed for job in jobs[1:]] == [1 + 30 + 3] * 7


def test_s11_a_session_key_alone_reuses_nothing() -> None:
    engine = HashEngine()
    first = engine.run([1] * 100 + [2] * 50, 5, "same")
    second = engine.run([1] * 100 + [3] * 50, 5, "same")
    assert (second.cached, engine.counters.cache_reuse.root_selections) == (0, 2)
    assert _hit(engine.run(first.turn([4] * 5), 1, "same")) == (154, 6)


def test_s12_a_slow_older_request_does_not_steal_its_session() -> None:
    engine = HashEngine()
    slow = engine.submit([1] * 70, 60, "s")
    fast = engine.submit([2] * 70, 2, "s")
    engine.drain()
    assert slow.held.order < fast.held.order
    retention = {s.lineage: engine.stores.sessions.retention(s) for s in engine.stores.tree.snapshots()}
    assert retention == {slow.held.lineage: "recent_private", fast.held.lineage: "live_session"}


def test_s13_a_growing_conversation_stays_one() -> None:
    engine = HashEngine()
    job = engine.run([1] * 80, 5, "s")
    for turn in range(19):
        before = job
        job = engine.run(job.turn([turn] * 7), 5, "s")
        assert job.cached == len(before.tokens) + 4
        assert len(engine.stores.lineages) == 1
    assert engine.counters.superseded == 19
    assert [s.superseded for s in engine.stores.tree.snapshots()].count(False) == 1
    # Eight of the older points are kept, sparser toward the beginning.
    frontiers = sorted(s.frontier for s in engine.stores.tree.snapshots())
    assert len(frontiers) == 9
    assert frontiers[-1] - frontiers[-3] < frontiers[2] - frontiers[0]


def test_a_beginning_that_two_conversations_share_is_found_without_being_told() -> None:
    engine = HashEngine(chunk=2048)
    shared = [n % 89 for n in range(300)]
    for n in range(3):
        engine.run([*shared, *([n] * 100)], 1, str(n))
    # The second one sees four full pages of the first that no snapshot ends, and leaves one there; the third uses it.
    reuse = engine.counters.cache_reuse
    assert (reuse.root_selections, reuse.shared_stable_prefix_selections) == (2, 1)
    assert reuse.reused_prompt_tokens == 256


@pytest.mark.parametrize(("stripped", "roots"), [(True, 1), (False, 4)], ids=["stripped", "volatile"])
def test_s14_a_line_that_changes_every_turn_costs_every_hit(stripped: bool, roots: int) -> None:
    engine = HashEngine()
    history = [1] * 100
    for turn in range(4):
        line = [] if stripped else [500 + turn] * 20
        history = [*history, *engine.run([*line, *history], 5, "s").made, *([2] * 10)]
    assert engine.counters.cache_reuse.root_selections == roots


def test_s15_a_rewind_restores_only_the_pages_before_it() -> None:
    engine = HashEngine(pages=110, host_slabs=400)
    ids = [n % 251 for n in range(6000)]
    engine.run(ids, 1, "a")
    # The ladder: 6000 - 4096 = 1904, tapped at the chunk end before it.
    assert [s.frontier for s in engine.stores.tree.snapshots() if s.kind == "long_anchor"] == [1792]
    engine.run([7] * 6900, 1, "b")  # 108 pages: all but two of the 94 leave the device
    before = engine.counters.kv_transfers.main_kv_h2d_pages
    rewound = engine.run([*ids[:1900], *([3] * 40)], 1, "a")
    assert _hit(rewound) == (1792, 148)
    assert engine.counters.cache_reuse.private_long_anchor_selections == 1
    assert engine.counters.kv_transfers.main_kv_h2d_pages - before == 28 - 2
