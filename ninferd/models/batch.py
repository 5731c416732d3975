"""What a model sees of the outside: one flat batch of tokens, and the cache tensors it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import GatedDeltaPending

MAX_ROWS: Final = 16
"""Most rows that a sequence brings to a decode round: the last token and drafts behind it."""


@dataclass(frozen=True)
class Batch:
    """The tokens of one model step, of all sequences back to back.

    N tokens, S sequences, R rows whose logits are wanted. All tensors live on the model's device. A sequence brings a
    prefill chunk, or the rows of a decode round: its last token, in a round that verifies drafts those behind it too.
    """

    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [3, N], rope positions on the T, H and W axes
    query_starts: tuple[int, ...]  # [S + 1], start of each sequence in the flat axis, then N
    context_lengths: torch.Tensor  # int64 [S], KV length of each sequence once this batch is appended
    host_context_lengths: tuple[int, ...] | None  # the same; None in a decode round, see ``rows_per_sequence``
    page_table: torch.Tensor  # int32 [S, P], physical page of each logical page of 64 positions
    slot_mapping: torch.Tensor  # int64 [N], physical page * page_tokens + offset of each new token
    state_slots: torch.Tensor  # int64 [S], recurrent state slot of each sequence (zeroed when first acquired)
    logit_rows: torch.Tensor  # int64 [R], rows of the flat axis to compute logits for
    accepted: torch.Tensor | None = None  # int64 [S], rows of each sequence's last round that count; see ``Caches``

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """Tokens that each sequence brings, [S]."""
        return tuple(b - a for a, b in zip(self.query_starts, self.query_starts[1:], strict=False))

    @property
    def rows_per_sequence(self) -> int | None:
        """T of a decode round, in which every sequence brings as many rows; None of any other batch.

        Nothing of a round that changes from step to step is on the host, so that it may be captured once and replayed
        with other contents of the same tensors.
        """
        tokens, sequences = self.query_starts[-1], len(self.query_starts) - 1
        if self.host_context_lengths is None or tokens == sequences:
            return tokens // sequences
        return None


@dataclass(frozen=True)
class Caches:
    """Cache tensors, allocated by ``ninferd.memory`` and written in place by the model.

    A page holds 64 positions of every attention layer as one contiguous run, so that memory can move it
    without looking inside.

    A round whose batch says what was ``accepted`` leaves its own rows pending, one row too: they enter the recurrent
    states with the next such round, which says how many were accepted of them. Until then the states of these slots lag
    behind; ``gated_delta_commit`` of the op table catches up, after which any other batch may follow, with nothing
    pending. Without ``accepted`` a round has one row, which is final at once.
    """

    kv: PagedKv
    conv: torch.Tensor  # [slots, GDN layers, conv channels, kernel - 1], the last conv inputs, oldest first
    recurrent: torch.Tensor  # float32 [slots, GDN layers, value heads, key head dim, value head dim]
    pending: GatedDeltaPending | None = None  # rows of the last round of every slot
