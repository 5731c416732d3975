"""Driving a text model directly: caches, pages and slots of a few sequences, without an engine."""

from __future__ import annotations

import torch

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS, KvCodec
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from ninferd.models import Qwen3_5Text
from ninferd.models.batch import Batch, Caches


def make_caches(
    model: Qwen3_5Text, pages: int, slots: int, kv_dtype: str | KvCodec = "fp32", fill: int = 0xFF
) -> Caches:
    """Caches for ``model``; all bytes of keys and values start as ``fill``, a NaN, so that reading an unwritten
    position shows.
    """
    config, device = model.config, model.device
    attention, gdn = config.attention, config.gated_delta
    codec = KV_CODECS[kv_dtype] if isinstance(kv_dtype, str) else kv_dtype
    layout = KvLayout(codec, config.attention_layer_count, attention.kv_heads, attention.head_dim)
    kv = PagedKv.zeros(layout, pages, device)
    kv.pages.fill_(fill)
    conv_shape = (slots, config.gdn_layer_count, gdn.conv_channels, gdn.conv_kernel - 1)
    state_shape = (slots, config.gdn_layer_count, gdn.value_heads, gdn.key_dim, gdn.value_dim)
    return Caches(
        kv=kv,
        conv=torch.zeros(conv_shape, device=device),
        recurrent=torch.zeros(state_shape, device=device),
    )


class Sequence:
    """A sequence's place in the caches and how far it has come."""

    def __init__(self, pages: list[int], slot: int) -> None:
        self.pages = pages
        self.slot = slot
        self.length = 0


class Runner:
    """Steps sequences that own fixed pages and slots."""

    def __init__(self, model: Qwen3_5Text, caches: Caches, sequences: list[Sequence]) -> None:
        self.model = model
        self.caches = caches
        self.sequences = sequences

    @classmethod
    def create(
        cls, model: Qwen3_5Text, sequences: int, tokens_each: int, kv_dtype: str | KvCodec = "fp32", seed: int = 0
    ) -> Runner:
        """Sequences of up to ``tokens_each`` tokens on shuffled pages and slots, with unused ones between."""
        per_sequence = -(-tokens_each // PAGE_TOKENS)
        generator = torch.Generator().manual_seed(seed)
        pages = torch.randperm(sequences * per_sequence + 2, generator=generator).tolist()
        slots = torch.randperm(sequences + 2, generator=generator).tolist()
        caches = make_caches(model, len(pages), len(slots), kv_dtype)
        owned = [
            Sequence(pages[index * per_sequence : (index + 1) * per_sequence], slots[index])
            for index in range(sequences)
        ]
        return cls(model, caches, owned)

    def batch(self, chunks: dict[int, list[int]], all_logits: bool = False) -> Batch:
        """The batch that appends ``chunks``, token ids by sequence; logits of each chunk's last row or of all rows."""
        ids: list[int] = []
        positions: list[int] = []
        mapping: list[int] = []
        starts = [0]
        for index, tokens in chunks.items():
            sequence = self.sequences[index]
            for position in range(sequence.length, sequence.length + len(tokens)):
                positions.append(position)
                mapping.append(sequence.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
            ids += tokens
            starts.append(len(ids))
        device = self.model.device
        chosen = [self.sequences[index] for index in chunks]
        rows = list(range(len(ids))) if all_logits else [start - 1 for start in starts[1:]]
        contexts = tuple(s.length + len(t) for s, t in zip(chosen, chunks.values(), strict=True))
        return Batch(
            token_ids=torch.tensor(ids, device=device),
            positions=torch.tensor(positions, device=device).expand(3, -1),
            query_starts=tuple(starts),
            context_lengths=torch.tensor(contexts, device=device),
            host_context_lengths=contexts,
            page_table=torch.tensor([s.pages for s in chosen], dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(mapping, device=device),
            state_slots=torch.tensor([s.slot for s in chosen], device=device),
            logit_rows=torch.tensor(rows, device=device),
        )

    def step(self, chunks: dict[int, list[int]], all_logits: bool = False) -> torch.Tensor:
        """Run one batch; logits on the CPU."""
        logits = self.model.forward(self.batch(chunks, all_logits), self.caches)
        for index, tokens in chunks.items():
            self.sequences[index].length += len(tokens)
        return logits.cpu()

    def greedy(self, index: int, prompt: list[int], count: int) -> list[int]:
        """``count`` greedy tokens of one sequence after ``prompt``."""
        generated = [int(self.step({index: prompt})[-1].argmax())]
        while len(generated) < count:
            generated.append(int(self.step({index: generated[-1:]})[-1].argmax()))
        return generated
