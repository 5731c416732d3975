"""Fairness F1 to F3 and backfill of spec/memory §9, on the scheduler and on a whole engine."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ninferd.engine.messages import GenerationRequest, PromptIdentity, RequestAdmitted
from ninferd.engine.scheduler import DecodeRound, PrefillChunk, Scheduler
from ninferd.engine.sequence import Entitlement, Sequence
from ninferd.memory.pages import PagePool, PageReservation
from tests.engine.hash_model import expected_tokens
from tests.engine.rig import GREEDY, Rig, prompt_of


class Desk:
    """A scheduler with its pool, and reservations made as the engine makes them."""

    def __init__(self, *, pages: int, lanes: int, chunk: int = 64) -> None:
        self.pool = PagePool(pages)
        self.scheduler = Scheduler(self.pool, lanes, chunk)
        self._held: dict[str, PageReservation] = {}
        self.sequences: dict[str, Sequence] = {}

    def queue(self, name: str, pages: int) -> None:
        tokens = pages * 64
        request = GenerationRequest(name, PromptIdentity.from_token_ids([0] * tokens), GREEDY, 1, ())
        prompt = np.zeros(tokens, np.int64)
        self.sequences[name] = Sequence(request, prompt, Entitlement.of(tokens, 1, tokens), 0.0, None)
        self.scheduler.enqueue(self.sequences[name])

    def admit(self) -> str | None:
        sequence = self.scheduler.admit()
        if sequence is None:
            return None
        reservation = self.pool.reserve(sequence.entitlement.pages)
        assert reservation is not None, "admitted what does not fit"
        self._held[sequence.request_id] = reservation
        return sequence.request_id

    def admit_all(self) -> list[str]:
        return list(iter(self.admit, None))

    def end(self, name: str) -> None:
        self.scheduler.remove(self.sequences[name])
        self.pool.cancel(self._held.pop(name))


def test_admission_is_first_in_first_out() -> None:
    desk = Desk(pages=10, lanes=8)
    for name in "abc":
        desk.queue(name, 2)
    assert desk.admit_all() == ["a", "b", "c"]


def test_lanes_bound_admission() -> None:
    desk = Desk(pages=10, lanes=2)
    for name in "abc":
        desk.queue(name, 1)
    assert desk.admit_all() == ["a", "b"]
    desk.end("a")
    assert desk.admit_all() == ["c"]


def test_a_small_request_passes_a_blocked_head_that_it_cannot_delay() -> None:
    desk = Desk(pages=10, lanes=4)
    desk.queue("donor", 6)
    desk.queue("head", 7)
    desk.queue("too big beside head", 4)
    desk.queue("small", 3)
    assert desk.admit_all() == ["donor", "small"]
    desk.end("donor")
    assert desk.admit_all() == ["head"]


def test_borrowers_together_must_leave_room_for_the_head() -> None:
    desk = Desk(pages=12, lanes=8)
    desk.queue("donor", 6)
    desk.queue("head", 9)
    for name in ("s1", "s2", "s3", "s4"):
        desk.queue(name, 1)
    assert desk.admit_all() == ["donor", "s1", "s2", "s3"]  # 9 + 3 x 1 = 12; a fourth would delay the head
    desk.end("s2")
    assert desk.admit_all() == ["s4"]
    desk.end("donor")
    assert desk.admit_all() == ["head"]


def test_borrowers_leave_a_lane_for_the_head() -> None:
    desk = Desk(pages=100, lanes=3)
    desk.queue("donor", 60)
    desk.queue("head", 50)
    for name in ("s1", "s2", "s3"):
        desk.queue(name, 1)
    assert desk.admit_all() == ["donor", "s1", "s2"]
    desk.end("s1")
    assert desk.admit_all() == ["s3"]
    desk.end("donor")
    assert desk.admit_all() == ["head"]


def test_a_new_head_gets_new_donors() -> None:
    desk = Desk(pages=10, lanes=4)
    desk.queue("donor", 6)
    desk.queue("first head", 7)
    desk.queue("small", 3)
    assert desk.admit_all() == ["donor", "small"]
    desk.scheduler.remove(desk.sequences["first head"])
    desk.queue("second head", 9)
    desk.queue("tiny", 1)
    assert desk.admit_all() == ["tiny"]  # "small" is a donor now: 9 + 1 fit when donor and small are gone
    desk.end("small")
    desk.end("donor")
    assert desk.admit_all() == ["second head"]


def test_prefill_and_decode_alternate_and_decode_takes_all() -> None:
    desk = Desk(pages=10, lanes=4)
    for name, pages in (("a", 1), ("b", 1), ("c", 4)):
        desk.queue(name, pages)
        desk.admit()
        if name != "c":
            desk.scheduler.start_decoding(desk.sequences[name])
            desk.scheduler.next_unit()
    units = []
    for _ in range(6):
        unit = desk.scheduler.next_unit()
        if isinstance(unit, PrefillChunk):
            unit.sequence.processed = unit.end
            units.append((unit.sequence.request_id, unit.start, unit.end))
        elif isinstance(unit, DecodeRound):
            units.append(("decode", len(unit.sequences), 0))
    assert units == [
        ("c", 0, 64),
        ("decode", 2, 0),
        ("c", 64, 128),
        ("decode", 2, 0),
        ("c", 128, 192),
        ("decode", 2, 0),
    ]


def test_f1_a_long_prefill_delays_a_stream_by_one_chunk_per_token() -> None:
    rig = Rig(lanes=2, pages=64, max_context=2048, prefill_chunk=64)
    stream = rig.submit("stream", prompt_of(5, 1), 60)
    rig.step()
    rig.submit("long", prompt_of(1600, 2), 2)
    rig.drain()
    gaps = [b - a for a, b in pairwise(stream.token_steps)]
    assert max(gaps) == 2  # one chunk and one round
    assert gaps.count(2) == 25  # 1600 / 64 chunks, each beside one round


def test_f2_a_blocked_head_is_admitted_in_the_step_after_its_donors_end() -> None:
    rig = Rig(lanes=3, pages=8, max_context=512)
    donors = [rig.submit(f"d{salt}", prompt_of(60, salt), 60 + salt) for salt in range(2)]
    head = rig.submit("head", prompt_of(400, 5), 10)  # 7 of 8 pages: both donors (2 pages each) must end
    while not head.events:
        rig.step()
    ended_at = max(donor.token_steps[-1] for donor in donors)
    assert isinstance(head.events[0], RequestAdmitted)
    assert rig.steps - 1 == ended_at + 1  # `steps` counts the admitting step already
    rig.drain()
    assert head.tokens == expected_tokens(prompt_of(400, 5), 10)


@pytest.mark.parametrize("small_pages", [1, 2])
def test_f3_small_requests_cannot_delay_a_blocked_head(small_pages: int) -> None:
    rig = Rig(lanes=4, pages=8, max_context=512)
    donor = rig.submit("donor", prompt_of(60, 1), 100)  # 3 pages
    rig.step()
    head = rig.submit("head", prompt_of(330, 2), 8)  # 6 pages
    while not head.events:
        rig.submit(f"s{rig.steps}", prompt_of(4, rig.steps), 64 * small_pages - 4)
        rig.step()
    passed = [name for name, outcome in rig.outcomes.items() if name.startswith("s") and outcome.events]
    assert passed, "backfill must use what the head cannot"
    assert donor.reason == "length"
    assert rig.steps - 1 - donor.token_steps[-1] == 1  # the head waited for its donor and for no one else
    rig.engine.cancel_all()
    rig.drain()
    rig.assert_empty()
