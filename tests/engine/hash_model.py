"""A model whose logits are a hash of all cached bytes it may read: a wrong page, slot or position changes the output.

``expected_tokens`` computes the same function from the token ids alone, without caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from ninferd.memory.geometry import StateGeometry
from ninferd.models.batch import Batch, Caches

VOCAB = 97
POISON = VOCAB - 1  # a sequence that holds this prompt token gets NaN in its caches and logits
KV = KvLayout(KV_CODECS["fp32"], layers=2, kv_heads=1, head_dim=2)
STATE = StateGeometry(
    gdn_layers=1, conv_channels=1, conv_history=3, conv_element_bytes=4, value_heads=1, key_head_dim=1, value_head_dim=1
)
_MASK = (1 << 64) - 1
_EXACT = 1 << 23  # integers below it are exact in float32


def _hash(*values: int) -> int:
    """64-bit mix of small integers (FNV-1a over words, then a finaliser)."""
    word = 0xCBF29CE484222325
    for value in values:
        word = ((word ^ (value & _MASK)) * 0x100000001B3) & _MASK
        word = (word ^ (word >> 29)) * 0xBF58476D1CE4E5B9 & _MASK
    return word ^ (word >> 32)


def _key(token: int, position: int) -> int:
    return _hash(1, token, position) % _EXACT


def _next_state(state: int, token: int, history: Sequence[int]) -> int:
    return _hash(2, state, token, *history) % _EXACT


def _logits(keys: npt.NDArray[np.int64], state: int) -> npt.NDArray[np.float32]:
    """[VOCAB] from the keys of all positions, in order, and the recurrent state; POISON is never the best."""
    ordinals = np.arange(1, len(keys) + 1)
    digest = _hash(3, int((keys * ordinals).sum()), state)
    values = [_hash(digest, token) % 10_007 / 1000 for token in range(VOCAB)]
    values[POISON] = -1e6
    return np.array(values, np.float32)


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy continuation of ``prompt``."""
    tokens = list(prompt)
    state, history, keys = 0, [0, 0, 0], []
    for position, token in enumerate(tokens):
        keys.append(_key(token, position))
        state = _next_state(state, token, history)
        history = [*history[1:], token]
    generated: list[int] = []
    for _ in range(count):
        token = int(_logits(np.array(keys), state).argmax())
        generated.append(token)
        keys.append(_key(token, len(keys)))
        state = _next_state(state, token, history)
        history = [*history[1:], token]
    return generated


@dataclass
class HashModel:
    """See the module; ``before_step`` may raise to inject an error, ``batches`` records what was asked."""

    before_step: Callable[[Batch], None] = lambda _batch: None
    after_writes: Callable[[Batch], None] = lambda _batch: None
    batches: list[tuple[int, ...]] = field(default_factory=list)  # query lengths of every step

    def forward(self, batch: Batch, caches: Caches) -> torch.Tensor:
        self.before_step(batch)
        self.batches.append(batch.query_lengths)
        digests = [self._advance(batch, caches, index) for index in range(len(batch.context_lengths))]
        self.after_writes(batch)
        ends = {end - 1: index for index, end in enumerate(batch.query_starts[1:])}
        rows = [digests[ends[row]] for row in batch.logit_rows.tolist()]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty((0, VOCAB))

    def _advance(self, batch: Batch, caches: Caches, index: int) -> npt.NDArray[np.float32]:
        """Append one sequence's tokens and return the logits after its last one."""
        start, end = batch.query_starts[index : index + 2]
        context, slot = int(batch.context_lengths[index]), int(batch.state_slots[index])
        first = context - (end - start)
        assert batch.positions[:, start:end].tolist() == [list(range(first, context))] * 3
        table = batch.page_table[index].long()
        state, history = int(caches.recurrent[slot].item()), caches.conv[slot].flatten().long().tolist()
        if first == 0:
            assert state == 0
            assert history == [0, 0, 0]
        for position, token, flat in zip(
            range(first, context),
            batch.token_ids[start:end].tolist(),
            batch.slot_mapping[start:end].tolist(),
            strict=True,
        ):
            assert flat == int(table[position // PAGE_TOKENS]) * PAGE_TOKENS + position % PAGE_TOKENS
            caches.kv.plain[flat // PAGE_TOKENS, ..., flat % PAGE_TOKENS, :] = (
                float("nan") if token == POISON else float(_key(token, position))
            )
            state = _next_state(state, token, history)
            history = [*history[1:], token]
        caches.recurrent[slot] = float(state)
        caches.conv[slot] = torch.tensor(history, dtype=torch.float32)
        positions = torch.arange(context)
        cached = caches.kv.plain[table[positions // PAGE_TOKENS], :, :, :, positions % PAGE_TOKENS]
        if bool(cached.isnan().any()):
            return np.full(VOCAB, np.nan, np.float32)
        per_position = cached.reshape(context, -1)
        assert bool((per_position == per_position[:, :1]).all())
        return _logits(per_position[:, 0].long().numpy(), state)
