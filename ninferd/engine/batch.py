"""Builds the flat batch of a unit of work."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

import numpy as np
import numpy.typing as npt
import torch

from ninferd.engine.scheduler import PrefillChunk
from ninferd.engine.sequence import Sequence
from ninferd.memory.geometry import pages_for
from ninferd.memory.kv_cache import KVCache
from ninferd.models.batch import Batch

Ints = npt.NDArray[np.int64]


class BatchBuilder:
    """Fills one preallocated host buffer per step and sends it to the device as one copy.

    On a CPU the batch's tensors are views of that buffer: a batch is valid until the next one is built.
    """

    _FIELDS = 8  # token id, slot, three positions, and per sequence at most: row, state slot, logit row

    def __init__(self, kv: KVCache, max_tokens: int) -> None:
        self._kv = kv
        self._device = kv.tensor.device
        self._buffer = np.empty(self._FIELDS * max_tokens, np.int64)

    def prefill(self, chunk: PrefillChunk, *, want_logits: bool) -> Batch:
        """The tokens of one chunk; with ``want_logits`` its last row is a logit row, else there is none."""
        sequence, lane = chunk.sequence, chunk.sequence.held
        lane.space.ensure_mapped(chunk.end)
        length = chunk.end - chunk.start
        positions = np.arange(chunk.start, chunk.end)
        return self._build(
            token_ids=sequence.prompt[chunk.start : chunk.end],
            positions=positions,
            slots=self._kv.slot_mapping(np.array(lane.row), positions),
            rows=np.array([lane.row]),
            state_slots=np.array([lane.slot.index]),
            logit_rows=np.array([length - 1] if want_logits else [], np.int64),
            query_starts=(0, length),
            context_lengths=(chunk.end,),
        )

    def decode(self, sequences: Sequences[Sequence]) -> Batch:
        """The last sampled token of every sequence."""
        lanes = [sequence.held for sequence in sequences]
        for lane, sequence in zip(lanes, sequences, strict=True):
            lane.space.ensure_mapped(sequence.processed + 1)
        rows = np.array([lane.row for lane in lanes])
        positions = np.array([sequence.processed for sequence in sequences])
        count = len(lanes)
        return self._build(
            token_ids=np.array([sequence.last_token for sequence in sequences]),
            positions=positions,
            slots=self._kv.slot_mapping(rows, positions),
            rows=rows,
            state_slots=np.array([lane.slot.index for lane in lanes]),
            logit_rows=np.arange(count),
            query_starts=tuple(range(count + 1)),
            context_lengths=tuple((positions + 1).tolist()),
        )

    def _build(
        self,
        *,
        token_ids: Ints,
        positions: Ints,
        slots: Ints,
        rows: Ints,
        state_slots: Ints,
        logit_rows: Ints,
        query_starts: tuple[int, ...],
        context_lengths: tuple[int, ...],
    ) -> Batch:
        parts = (token_ids, slots, positions, positions, positions, rows, state_slots, logit_rows)
        tokens, sequences = len(token_ids), len(rows)
        used = 5 * tokens + 2 * sequences + len(logit_rows)
        np.concatenate(parts, out=self._buffer[:used])
        packed = torch.from_numpy(self._buffer[:used]).to(self._device)
        lengths = [tokens, tokens, 3 * tokens, sequences, sequences, len(logit_rows)]
        ids, slot_mapping, flat_positions, table_rows, states, wanted = torch.split(packed, lengths)
        return Batch(
            token_ids=ids,
            positions=flat_positions.view(3, tokens),
            query_starts=query_starts,
            context_lengths=context_lengths,
            page_table=self._kv.page_table(table_rows, pages_for(max(context_lengths))),
            slot_mapping=slot_mapping,
            state_slots=states,
            logit_rows=wanted,
        )
