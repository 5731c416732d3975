"""Where a step's inputs lie: in one buffer that the host fills and sends, at the same addresses at every step.

A decode round of W sequences has its tensors where every round of W sequences has them, so a captured round is
replayed by filling the buffer anew.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ninferd.engine.sent_buffer import SentBuffer
from ninferd.memory.geometry import pages_for
from ninferd.memory.kv_cache import KVCache
from ninferd.models.batch import Batch

Ints = npt.NDArray[np.int64]

_PER_TOKEN: Final = 5  # token id, slot, three positions
_PER_SEQUENCE: Final = 4  # page table row, state slot, context length, logit row


class StepInputs:
    """Filled by the host, sent as one asynchronous copy, read as a batch.

    A batch is a view: it is valid until the next ``load``.
    """

    def __init__(self, kv: KVCache, max_tokens: int) -> None:
        """``max_tokens`` in all sequences of one step."""
        self._kv = kv
        size = (_PER_TOKEN + _PER_SEQUENCE) * max_tokens
        self._buffer = SentBuffer(size, torch.int64, kv.tensor.device)

    def load(
        self, token_ids: Ints, positions: Ints, rows: Ints, state_slots: Ints, contexts: Ints, logit_rows: Ints
    ) -> None:
        """Fill and send. ``rows`` are the sequences' page table rows; ``positions`` [N] those of the tokens.

        Every position is one more token of its sequence's row: one row for all tokens, or a row for each.
        """
        slots = self._kv.slot_mapping(rows, positions)
        parts = (token_ids, slots, positions, positions, positions, rows, state_slots, contexts, logit_rows)
        used = sum(len(part) for part in parts)
        np.concatenate(parts, out=self._buffer.host(used))
        self._buffer.send(used)

    def prefill(self, length: int, context: int, *, want_logits: bool) -> Batch:
        """What was loaded, as ``length`` tokens of one sequence; its last row is a logit row or there is none."""
        return self._batch((0, length), (context,), pages_for(context), logit_rows=int(want_logits))

    def decode(self, sequences: int) -> Batch:
        """What was loaded, as one token for each of ``sequences``; no value of it is known to the host.

        The page table has all columns, whatever the contexts: what a kernel derives from its shape holds for any.
        """
        return self._batch(tuple(range(sequences + 1)), None, self._kv.columns, logit_rows=sequences)

    def _batch(
        self, query_starts: tuple[int, ...], contexts: tuple[int, ...] | None, columns: int, logit_rows: int
    ) -> Batch:
        tokens, sequences = query_starts[-1], len(query_starts) - 1
        lengths = [tokens, tokens, 3 * tokens, sequences, sequences, sequences, logit_rows]
        loaded = self._buffer.device[: sum(lengths)]
        ids, slot_mapping, positions, rows, states, context_lengths, wanted = torch.split(loaded, lengths)
        return Batch(
            token_ids=ids,
            positions=positions.view(3, tokens),
            query_starts=query_starts,
            context_lengths=context_lengths,
            host_context_lengths=contexts,
            page_table=self._kv.page_table(rows, columns),
            slot_mapping=slot_mapping,
            state_slots=states,
            logit_rows=wanted,
        )
