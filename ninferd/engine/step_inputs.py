"""Where a step's inputs lie: in one buffer that the host fills and sends, at the same addresses at every step.

A decode round of W sequences of T rows has its tensors where every such round has them, so a captured round is replayed
by filling the buffer anew.
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

_PER_TOKEN: Final = 6  # token id, slot, three positions, logit row
_PER_SEQUENCE: Final = 4  # page table row, state slot, context length, accepted rows
_NONE: Final = np.zeros(0, np.int64)


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
        self,
        token_ids: Ints | None,
        positions: Ints,
        rows: Ints,
        state_slots: Ints,
        contexts: Ints,
        logit_rows: Ints,
        accepted: Ints = _NONE,
    ) -> None:
        """Fill and send. ``rows`` [S] are the sequences' page table rows; ``positions`` [N] those of the tokens.

        Every sequence brings as many tokens, at positions of its row. ``accepted`` [S] is that of rounds of several.
        Token ids that are None stay as they are on the device, see ``feed``.
        """
        slots = self._kv.slot_mapping(rows[:, None], positions.reshape(len(rows), -1)).reshape(-1)
        parts = (slots, positions, positions, positions, rows, state_slots, contexts, logit_rows, accepted)
        begin = 0 if token_ids is not None else len(positions)
        used = len(positions) + sum(map(len, parts))
        np.concatenate(parts if token_ids is None else (token_ids, *parts), out=self._buffer.host(used)[begin:])
        self._buffer.send(used, begin)

    def feed(self, tokens: torch.Tensor) -> None:
        """Make ``tokens`` int64 [S] the first token ids, without the host."""
        self._buffer.device[: len(tokens)].copy_(tokens)

    def prefill(self, length: int, context: int, *, want_logits: bool) -> Batch:
        """What was loaded, as ``length`` tokens of one sequence; its last row is a logit row or there is none."""
        return self._batch((0, length), (context,), pages_for(context), logit_rows=int(want_logits))

    def decode(self, sequences: int, rows: int = 1) -> Batch:
        """What was loaded, as ``rows`` tokens for each of ``sequences``; no value of it is known to the host.

        Of several, ``accepted`` was loaded too. The page table has all columns, whatever the contexts: what a kernel
        derives from its shape holds for any.
        """
        starts = tuple(range(0, sequences * rows + 1, rows))
        accepted = sequences if rows > 1 else 0
        return self._batch(starts, None, self._kv.columns, logit_rows=sequences * rows, accepted=accepted)

    def _batch(
        self,
        query_starts: tuple[int, ...],
        contexts: tuple[int, ...] | None,
        columns: int,
        logit_rows: int,
        accepted: int = 0,
    ) -> Batch:
        tokens, sequences = query_starts[-1], len(query_starts) - 1
        lengths = [tokens, tokens, 3 * tokens, sequences, sequences, sequences, logit_rows, accepted]
        loaded = self._buffer.device[: sum(lengths)]
        ids, slots, positions, rows, states, context_lengths, wanted, kept = torch.split(loaded, lengths)
        return Batch(
            token_ids=ids,
            positions=positions.view(3, tokens),
            query_starts=query_starts,
            context_lengths=context_lengths,
            host_context_lengths=contexts,
            page_table=self._kv.page_table(rows, columns),
            slot_mapping=slots,
            state_slots=states,
            logit_rows=wanted,
            accepted=kept if accepted else None,
        )
