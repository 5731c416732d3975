"""Rounds at a context that nobody computed are rounds at that context."""

from __future__ import annotations

import pytest
import torch

from ninferd.benchmarks.rehearsal import GREEDY, SAMPLED, TEMPLATE_TOKENS, WARM_ROUNDS, Rehearsal
from ninferd.benchmarks.subject import Subject, load_subject
from ninferd.engine.sampler import Prepared
from ninferd.errors import InputError
from ninferd.memory.errors import CapacityError
from ninferd.models.batch import MAX_ROWS, Batch, Caches

CONTEXT, ROUNDS = 300, 5


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load_subject("embedded:ninfer-tiny", "cpu", lambda done, total: None)


@pytest.fixture
def rehearsal(subject: Subject) -> Rehearsal:
    return Rehearsal(subject, 2, CONTEXT, "fp32", graphs=True)


def test_every_page_holds_what_a_prompt_left(rehearsal: Rehearsal) -> None:
    """All of the template's, in turn; it covers the context, so every page is one of its pages."""
    assert CONTEXT < TEMPLATE_TOKENS
    pages = rehearsal.engine._kv.tensor
    columns = -(-(CONTEXT - 1) // 64)
    assert len(pages) > columns
    for page, content in enumerate(pages):
        assert torch.equal(content, pages[page % columns])
    assert all(content.any() for content in pages)


def test_lanes_end_at_their_context(rehearsal: Rehearsal) -> None:
    prompt = rehearsal.start(2, ROUNDS, GREEDY)
    assert prompt == CONTEXT - ROUNDS - WARM_ROUNDS - 2 - MAX_ROWS
    rehearsal.steps_seconds(ROUNDS)
    assert rehearsal.engine.stats().decoding == 2
    processed = [sequence.processed for sequence in rehearsal.engine._scheduler.decoding]
    assert sum(processed) / 2 == rehearsal.context_tokens(prompt) - 1  # the last token is not in the cache yet
    assert max(processed) < CONTEXT
    rehearsal.engine.check()
    rehearsal.stop()
    assert not rehearsal.engine.has_work


def test_lanes_begin_with_the_state_of_a_prompt(rehearsal: Rehearsal) -> None:
    model = rehearsal.engine._model
    caches = rehearsal.engine._caches
    caches.recurrent.zero_()
    batch = Batch(
        token_ids=torch.zeros(3, dtype=torch.int64),
        positions=torch.zeros(3, 3, dtype=torch.int64),
        query_starts=(0, 3),
        context_lengths=torch.tensor([3]),
        host_context_lengths=(3,),
        page_table=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping=torch.arange(3),
        state_slots=torch.tensor([1]),
        logit_rows=torch.tensor([2]),
    )
    assert model.forward(batch, caches).shape == (1, 4096)
    assert caches.recurrent[1].any()
    assert not caches.recurrent[0].any()


def test_rounds_of_several_rows_leave_the_lanes_as_they_were(rehearsal: Rehearsal) -> None:
    rehearsal.start(2, ROUNDS, GREEDY)
    before = [sequence.processed for sequence in rehearsal.engine._scheduler.decoding]
    assert rehearsal.round_seconds(2, 1, draws=False) > 0
    assert rehearsal.round_seconds(2, 3, draws=False) > 0
    assert [sequence.processed for sequence in rehearsal.engine._scheduler.decoding] == before
    rehearsal.stop()


def test_tokens_are_drawn(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []
    rank = rehearsal.engine._sampler.rank

    def watched(logits: torch.Tensor, prepared: Prepared) -> object:
        drawn.append(prepared.draws)
        return rank(logits, prepared)

    rehearsal.start(1, ROUNDS, SAMPLED)
    monkeypatch.setattr(rehearsal.engine._sampler, "rank", watched)
    rehearsal.steps_seconds(ROUNDS)
    assert drawn == [True] * ROUNDS
    rehearsal.stop()


def test_a_context_too_short(rehearsal: Rehearsal) -> None:
    with pytest.raises(InputError, match=r"^300 tokens of context are too few for 290 rounds"):
        rehearsal.start(1, 290, GREEDY)


def test_caches_that_do_not_fit(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.engine.build.free_host_bytes", lambda: 1 << 30)
    with pytest.raises(CapacityError, match="caches do not fit"):
        Rehearsal(subject, 8, 16000, "fp32", graphs=True)


def test_caches_are_what_forward_gets() -> None:
    """The rehearsal fills them by these names."""
    assert {"kv", "conv", "recurrent"} <= set(Caches.__dataclass_fields__)
