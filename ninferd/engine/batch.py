"""Builds the flat batch of a unit of work."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

import numpy as np
import torch

from ninferd.engine.scheduler import PrefillChunk
from ninferd.engine.sequence import Sequence
from ninferd.engine.step_inputs import Ints, StepInputs
from ninferd.memory.kv_cache import KVCache
from ninferd.models.batch import Batch


class BatchBuilder:
    """Maps the pages that a unit of work needs and loads its tokens; a batch is valid until the next one is built."""

    def __init__(self, kv: KVCache, max_tokens: int) -> None:
        self._inputs = StepInputs(kv, max_tokens)

    def prefill(self, chunk: PrefillChunk, *, want_logits: bool) -> Batch:
        """The tokens of one chunk; with ``want_logits`` its last row is a logit row, else there is none."""
        sequence, lane = chunk.sequence, chunk.sequence.held
        lane.space.ensure_mapped(chunk.end)
        length = chunk.end - chunk.start
        self._inputs.load(
            token_ids=sequence.prompt[chunk.start : chunk.end],
            positions=np.arange(chunk.start, chunk.end),
            rows=np.array([lane.row]),
            state_slots=np.array([lane.slot.index]),
            contexts=np.array([chunk.end]),
            logit_rows=np.array([length - 1] if want_logits else [], np.int64),
        )
        return self._inputs.prefill(length, chunk.end, want_logits=want_logits)

    def load_decode(self, sequences: Sequences[Sequence]) -> None:
        """Load the last sampled token of every sequence, for ``decode``."""
        self.load_rows(sequences, np.array([[sequence.last_token] for sequence in sequences]))

    def load_following(self, sequences: Sequences[Sequence]) -> None:
        """As ``load_decode``, while the round that makes the tokens still runs: it will have fed them."""
        self._load(sequences, 1, None, None)

    def feed(self, tokens: torch.Tensor) -> None:
        """The tokens int64 [S] of a round, for one that follows; reads and writes device memory only."""
        self._inputs.feed(tokens)

    def load_rows(self, sequences: Sequences[Sequence], tokens: Ints, accepted: Ints | None = None) -> None:
        """Load ``tokens`` [S, T] that follow what each sequence has processed, for ``decode``.

        With T > 1, ``accepted`` [S] is how many of the rows that a round of several left pending count.
        """
        self._load(sequences, tokens.shape[1], tokens.reshape(-1), accepted)

    def _load(self, sequences: Sequences[Sequence], rows: int, token_ids: Ints | None, accepted: Ints | None) -> None:
        lanes = [sequence.held for sequence in sequences]
        for lane, sequence in zip(lanes, sequences, strict=True):
            lane.space.ensure_mapped(sequence.processed + rows)
        first = np.array([sequence.processed for sequence in sequences])
        more = {} if accepted is None else {"accepted": accepted}
        self._inputs.load(
            token_ids=token_ids,
            positions=(first[:, None] + np.arange(rows)).reshape(-1),
            rows=np.array([lane.row for lane in lanes]),
            state_slots=np.array([lane.slot.index for lane in lanes]),
            contexts=first + rows,
            logit_rows=np.arange(rows * len(lanes)),
            **more,
        )

    def decode(self, sequences: int, rows: int = 1) -> Batch:
        """The round of as many sequences and rows of each that was loaded; reads nothing but device memory."""
        return self._inputs.decode(sequences, rows)
