"""Spec §10.5: 264 requests of three sessions on a device that holds one and a half of them, without a re-prefill."""

from __future__ import annotations

import itertools
import random

from tests.memory.hash_engine import SLAB, HashEngine, Job

TURNS = 88


def test_three_sessions_of_88_turns_prefill_only_what_is_new() -> None:
    draw = random.Random(7)
    engine = HashEngine(
        pages=180,
        lanes=3,
        retained_images=3,
        host_slabs=400 + 12 * 2,
        chunk=1024,
        start_full=False,
        host_chunk_slabs=32,
        check_every=25,
    )
    sessions: list[list[Job]] = [[] for _ in range(3)]
    while any(len(jobs) < TURNS for jobs in sessions):
        due = [n for n in range(3) if len(sessions[n]) < TURNS and (not sessions[n] or sessions[n][-1].ended)]
        for number in draw.sample(due, draw.randint(0, len(due))):
            jobs = sessions[number]
            words = [draw.randrange(500) for _ in range(draw.randint(35, 65))]
            ids = jobs[-1].turn(words) if jobs else [draw.randrange(500) for _ in range(1500)]
            jobs.append(engine.submit(ids, 20, f"session {number}"))
        engine.step()
    engine.drain()
    everything = [job for jobs in sessions for job in jobs]
    reuse, pressure = engine.counters.cache_reuse, engine.counters.pressure
    assert (len(everything), engine.counters.admissions, reuse.root_selections) == (264, 264, 3)
    for jobs in sessions:
        for before, job in itertools.pairwise(jobs):
            assert job.cached == len(before.tokens) + 19  # everything but its last token, which never ran
    assert sum(job.computed for job in everything) == sum(len(job.tokens) - job.cached for job in everything)
    assert reuse.reused_prompt_tokens == sum(job.cached for job in everything)
    assert (pressure.private_owners_evicted, pressure.shared_owners_evicted) == (0, 0)
    assert (pressure.maximal_fallback_selections, pressure.search_budget_exhaustions) == (0, 0)
    assert engine.counters.kv_transfers.main_kv_d2h_pages > 0
    assert engine.counters.kv_transfers.main_kv_h2d_pages > 0
    assert engine.stores.slabs.counters.post_grow_failures == 0
    assert engine.stores.slabs.capacity * SLAB <= engine.stores.slabs.limits.ceiling_bytes
    assert not engine.stores.pages.pins.any()
