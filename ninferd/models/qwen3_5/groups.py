"""A batch as the ops want it: the sequences that decode together, and each sequence that prefills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ninferd.models.batch import Batch


@dataclass(frozen=True)
class DecodeGroup:
    """All sequences that decode; row t of sequence s is row ``s * rows_per_sequence + t`` of those selected."""

    rows: torch.Tensor | None  # int64 [S], their rows in the flat axis, of one each; None if those are all rows
    state_slots: torch.Tensor  # int64 [S]
    page_table: torch.Tensor  # int32 [S, P]
    context_lengths: torch.Tensor  # int64 [S], with all rows
    rows_per_sequence: int = 1
    accepted: torch.Tensor | None = None  # int64 [S], see Batch

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """This group's rows of a flat tensor."""
        return x if self.rows is None else x[self.rows]


@dataclass(frozen=True)
class PrefillSpan:
    """One sequence that brings several tokens."""

    rows: slice
    state_slot: torch.Tensor  # int64 [1]
    pages: torch.Tensor  # int32 [P]
    context_length: int


@dataclass(frozen=True)
class SequenceGroups:
    """How the sequences of a batch are handled by the ops that keep them apart."""

    decode: DecodeGroup | None
    prefill: tuple[PrefillSpan, ...]

    def apply(
        self,
        like: torch.Tensor,
        width: int,
        decode: Callable[[DecodeGroup], torch.Tensor],
        prefill: Callable[[PrefillSpan], torch.Tensor],
    ) -> torch.Tensor:
        """Outputs ``[N, width]`` of the group and of every span in the flat order; ``like`` gives N, dtype, device."""
        if self.decode is not None and self.decode.rows is None:
            return decode(self.decode)
        out = like.new_empty(like.shape[0], width)
        if self.decode is not None:
            out[self.decode.rows] = decode(self.decode)
        for span in self.prefill:
            out[span.rows] = prefill(span)
        return out

    @classmethod
    def of(cls, batch: Batch) -> SequenceGroups:
        """The groups of a batch; of a decode round without a look at the device or a copy to it."""
        if (per_sequence := batch.rows_per_sequence) is not None:
            parts = batch.state_slots, batch.page_table, batch.context_lengths
            return cls(DecodeGroup(None, *parts, per_sequence, batch.accepted), ())
        device, lengths, contexts = batch.token_ids.device, batch.query_lengths, batch.host_context_lengths
        assert contexts is not None
        single = [sequence for sequence, length in enumerate(lengths) if length == 1]
        prefill = tuple(
            PrefillSpan(
                slice(batch.query_starts[sequence], batch.query_starts[sequence + 1]),
                batch.state_slots[sequence : sequence + 1],
                batch.page_table[sequence],
                contexts[sequence],
            )
            for sequence, length in enumerate(lengths)
            if length > 1
        )
        if not single:
            return cls(None, prefill)
        chosen = torch.tensor(single, device=device)
        rows = torch.tensor([batch.query_starts[sequence] for sequence in single], device=device)
        decode = DecodeGroup(rows, batch.state_slots[chosen], batch.page_table[chosen], batch.context_lengths[chosen])
        return cls(decode, prefill)
