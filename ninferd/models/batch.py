"""What a model sees of the outside: one flat batch of tokens, and the cache tensors it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """The tokens of one model step, of all sequences back to back.

    N tokens, S sequences, R rows whose logits are wanted. All tensors live on the model's device.
    A sequence may bring one token (decode) or many (a prefill chunk); the model treats both alike.
    """

    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [3, N], rope positions on the T, H and W axes
    query_starts: tuple[int, ...]  # [S + 1], start of each sequence in the flat axis, then N
    context_lengths: torch.Tensor  # int64 [S], KV length of each sequence once this batch is appended
    host_context_lengths: tuple[int, ...] | None  # the same; None if every sequence decodes, see ``is_decode``
    page_table: torch.Tensor  # int32 [S, P], physical page of each logical page of 64 positions
    slot_mapping: torch.Tensor  # int64 [N], physical page * page_tokens + offset of each new token
    state_slots: torch.Tensor  # int64 [S], recurrent state slot of each sequence (zeroed when first acquired)
    logit_rows: torch.Tensor  # int64 [R], rows of the flat axis to compute logits for

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """Tokens that each sequence brings, [S]."""
        return tuple(b - a for a, b in zip(self.query_starts, self.query_starts[1:], strict=False))

    @property
    def is_decode(self) -> bool:
        """Whether every sequence brings exactly one token.

        Nothing of such a batch that changes from step to step is on the host, so that its step may be captured once and
        replayed with other contents of the same tensors.
        """
        return self.query_starts[-1] == len(self.query_starts) - 1


@dataclass(frozen=True)
class Caches:
    """Cache tensors, allocated by ``ninferd.memory`` and written in place by the model.

    A page holds 64 positions of every attention layer as one contiguous run, so that memory can move it
    without looking inside.
    """

    kv: torch.Tensor  # [pages, attention layers, 2 (K, V), kv heads, page_tokens, head_dim]
    conv: torch.Tensor  # [slots, GDN layers, conv channels, kernel - 1], the last conv inputs, oldest first
    recurrent: torch.Tensor  # float32 [slots, GDN layers, value heads, key head dim, value head dim]
