"""The flat batch of a prefill chunk and of a decode round."""

from __future__ import annotations

import numpy as np
import torch

from ninferd.engine.batch import BatchBuilder
from ninferd.engine.messages import GenerationRequest, PromptIdentity
from ninferd.engine.scheduler import PrefillChunk
from ninferd.engine.sequence import Entitlement, Lane, Sequence
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateSlot
from tests.engine.hash_model import KV
from tests.engine.rig import GREEDY


def _cache() -> KVCache:
    return KVCache(KV, 16, 4, 8, torch.device("cpu"))


def _sequence(kv: KVCache, prompt: list[int], slot: int) -> Sequence:
    request = GenerationRequest("r", PromptIdentity.from_token_ids(prompt), GREEDY, 10, ())
    sequence = Sequence(request, np.array(prompt), Entitlement.of(len(prompt), 10, 512), 0.0, None)
    space = kv.open(sequence.entitlement.cache_tokens)
    assert space is not None
    sequence.lane = Lane(space, StateSlot(slot, 0))
    return sequence


def test_prefill_chunks() -> None:
    kv = _cache()
    builder = BatchBuilder(kv, 128)
    _sequence(kv, [9] * 70, slot=0).held.space.ensure_mapped(70)  # someone else holds the first pages
    sequence = _sequence(kv, list(range(100, 200)), slot=3)
    first = builder.prefill(PrefillChunk(sequence, 0, 64), want_logits=False)
    page = int(sequence.held.space.pages[0])
    assert first.token_ids.tolist() == list(range(100, 164))
    assert first.positions.tolist() == [list(range(64))] * 3
    assert first.slot_mapping.tolist() == list(range(page * 64, page * 64 + 64))
    assert (first.query_starts, first.host_context_lengths, first.rows_per_sequence) == ((0, 64), (64,), None)
    assert first.context_lengths.tolist() == [64]
    assert (first.state_slots.tolist(), first.logit_rows.tolist()) == ([3], [])
    assert first.page_table.tolist() == [[page]]
    last = builder.prefill(PrefillChunk(sequence, 64, 100), want_logits=True)
    pages = sequence.held.space.pages.tolist()
    assert last.token_ids.tolist() == list(range(164, 200))
    assert last.positions[1].tolist() == list(range(64, 100))
    assert last.slot_mapping.tolist() == list(range(pages[1] * 64, pages[1] * 64 + 36))
    assert (last.query_starts, last.host_context_lengths) == ((0, 36), (100,))
    assert last.context_lengths.tolist() == [100]
    assert last.logit_rows.tolist() == [35]
    assert last.page_table.tolist() == [pages]


def test_decode_round_of_sequences_of_different_length() -> None:
    kv = _cache()
    builder = BatchBuilder(kv, 128)
    long, short = _sequence(kv, [1] * 64, slot=2), _sequence(kv, [2] * 5, slot=0)
    builder.prefill(PrefillChunk(long, 0, 64), want_logits=True)
    builder.prefill(PrefillChunk(short, 0, 5), want_logits=True)
    long.processed, long.last_token, short.processed, short.last_token = 64, 11, 5, 22
    builder.load_decode((long, short))
    batch = builder.decode(2)
    long_pages, short_pages = long.held.space.pages.tolist(), short.held.space.pages.tolist()
    assert batch.token_ids.tolist() == [11, 22]
    assert batch.positions.tolist() == [[64, 5]] * 3
    assert batch.slot_mapping.tolist() == [long_pages[1] * 64, short_pages[0] * 64 + 5]
    assert (batch.query_starts, batch.host_context_lengths, batch.rows_per_sequence) == ((0, 1, 2), None, 1)
    assert batch.context_lengths.tolist() == [65, 6]
    assert batch.page_table.tolist() == [long_pages + [0] * 6, short_pages + [0] * 7], "all columns"
    assert (batch.state_slots.tolist(), batch.logit_rows.tolist()) == ([2, 0], [0, 1])
    for tensor in (batch.token_ids, batch.positions, batch.slot_mapping, batch.state_slots, batch.logit_rows):
        assert tensor.dtype == torch.int64


def test_round_of_several_rows() -> None:
    """The last token and two drafts of each; one sequence crosses a page."""
    kv = _cache()
    builder = BatchBuilder(kv, 128)
    long, short = _sequence(kv, [1] * 63, slot=2), _sequence(kv, [2] * 5, slot=0)
    builder.prefill(PrefillChunk(long, 0, 63), want_logits=True)
    builder.prefill(PrefillChunk(short, 0, 5), want_logits=True)
    long.processed, short.processed = 63, 5
    builder.load_rows((long, short), np.array([[11, 12, 13], [21, 22, 23]]), np.array([2, 0]))
    batch = builder.decode(2, 3)
    (first, second), (third,) = long.held.space.pages.tolist(), short.held.space.pages.tolist()
    assert batch.token_ids.tolist() == [11, 12, 13, 21, 22, 23]
    assert batch.positions.tolist() == [[63, 64, 65, 5, 6, 7]] * 3
    tail = list(range(third * 64 + 5, third * 64 + 8))
    assert batch.slot_mapping.tolist() == [first * 64 + 63, second * 64, second * 64 + 1, *tail]
    assert (batch.query_starts, batch.host_context_lengths, batch.rows_per_sequence) == ((0, 3, 6), None, 3)
    assert batch.context_lengths.tolist() == [66, 8]
    assert (batch.state_slots.tolist(), batch.logit_rows.tolist()) == ([2, 0], list(range(6)))
    assert batch.accepted is not None
    assert batch.accepted.tolist() == [2, 0]
    builder.load_rows((long, short), np.array([[11], [21]]))
    assert builder.decode(2).accepted is None


def test_one_sequence_of_several_rows_is_a_round() -> None:
    """It has no contexts on the host, which a chunk of as many tokens has."""
    kv = _cache()
    builder = BatchBuilder(kv, 128)
    sequence = _sequence(kv, [1] * 4, slot=1)
    builder.load_rows((sequence,), np.array([[7, 8, 9, 10]]), np.array([0]))
    assert builder.decode(1, 4).rows_per_sequence == 4
    assert builder.prefill(PrefillChunk(sequence, 0, 4), want_logits=True).rows_per_sequence is None
