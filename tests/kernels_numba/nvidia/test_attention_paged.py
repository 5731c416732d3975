"""Decode attention of several rows over any codec, as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_combine, attention_paged
from kernels_numba.nvidia.attention_decode_kernels import COMBINE_SHARED_BYTES
from kernels_numba.nvidia.attention_decode_plan import PAGED_WARPS, SCORE_SCALES, PagedPlan
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS
from kernels_numba.shapes import AttentionShape
from tests.kernels_numba.nvidia.emulator import launch

HEAD_DIM, LAYERS, LAYER = 256, 2, 1
ROUNDING = 2.5e-3
"""Of a result in bfloat16 and of probabilities in 16 bits, by norm."""


@dataclass
class Paged:
    """Rows of sequences on shuffled pages; every byte behind a context is 0xFF, a NaN where there are such."""

    codec: str
    contexts: list[int]
    heads: int = 6
    kv_heads: int = 1
    rows: int = 1
    seed: int = 0
    key_scale: float = 1.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        self.shape = AttentionShape(self.heads, self.kv_heads, HEAD_DIM, rotary_dim=64)
        counts = [max(1, -(-context // PAGE_TOKENS)) for context in self.contexts]
        layout = KvLayout(KV_CODECS[self.codec], LAYERS, self.kv_heads, HEAD_DIM)
        self.kv = PagedKv(torch.full((sum(counts) + 1, layout.page_bytes), 0xFF, dtype=torch.uint8), layout)
        order = torch.randperm(sum(counts), generator=generator) + 1
        self.table = torch.full((len(counts), max(counts) + 1), 1 << 30, dtype=torch.int32)
        for row, (own, context) in enumerate(zip(torch.split(order, counts), self.contexts, strict=True)):
            self.table[row, : len(own)] = own
            positions = torch.arange(context)
            slots = own[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
            spread = torch.exp(normal(context, 1, 1)) * self.key_scale
            values = normal(context, self.kv_heads, HEAD_DIM) * torch.exp(normal(context, 1, HEAD_DIM))
            store(
                self.kv,
                LAYER,
                slots,
                (normal(context, self.kv_heads, HEAD_DIM) * spread).float(),
                (values * self.value_scale).float(),
            )
        self.lengths = torch.tensor(self.contexts)
        total = len(self.contexts) * self.rows
        self.query = normal(total, self.heads, HEAD_DIM).bfloat16()
        self.projected = normal(total, self.shape.projected_width).bfloat16()

    def run(self, plan: PagedPlan, slots: int, late: bool = True) -> Tensor:
        """``late``: asynchronous copies arrive at the last moment, not at once."""
        shape, sequences = self.shape, len(self.contexts)
        group, layout = shape.heads // shape.kv_heads, self.kv.layout
        exponent = np.float32(shape.softmax_scale * math.log2(math.e) * 2.0 ** SCORE_SCALES[plan.codec])
        partial = torch.full((slots, shape.kv_heads, plan.tiles, 16, 32, 4), torch.nan)
        statistics = torch.full((slots, shape.kv_heads, plan.tiles, 8, 2), torch.nan)
        out = torch.full((len(self.query), shape.query_width), torch.nan).bfloat16()
        waits = attention_paged.waits(plan.codec, plan.tiles, plan.step_pages, plan.entries, plan.warpgroup)
        kv = self.kv.pages.data_ptr() + layout.layer_bytes * LAYER
        counts = (group, self.rows, self.rows, 0)
        launch(
            attention_paged.source(plan.codec, plan.tiles, plan.step_pages, plan.entries, plan.warpgroup),
            (slots, shape.kv_heads, 1),
            32 * PAGED_WARPS,
            [
                *(self.query.data_ptr(), kv, self.table.data_ptr(), self.lengths.data_ptr()),
                *(partial.data_ptr(), statistics.data_ptr(), sequences, self.table.stride(0), layout.page_bytes),
                *counts,
                exponent,
            ],
            [self.query, self.kv.pages, self.table, self.lengths, partial, statistics],
            shared_bytes=plan.shared_bytes,
            order=lambda blocks: random.Random(0).sample(blocks, len(blocks)),
            **({"waits": waits} if late else {"names": list(waits)}),
        )
        gate = self.projected[:, shape.query_width :]
        launch(
            attention_combine.source(HEAD_DIM),
            (HEAD_DIM // 16, shape.kv_heads, sequences * plan.tiles),
            32 * COMBINE_WARPS,
            [
                *(t.data_ptr() for t in (partial, statistics, self.lengths, gate, out)),
                *(sequences, 2 * self.projected.stride(0), *counts, slots, plan.step_pages, plan.tiles, exponent),
            ],
            [partial, statistics, self.lengths, self.projected, out],
            shared_bytes=COMBINE_SHARED_BYTES,
        )
        return out

    def expected(self) -> Tensor:
        """By the formula, in float64, of what the pages hold."""
        group, outputs = self.heads // self.kv_heads, []
        for s, context in enumerate(self.contexts):
            pages = self.table[s, : -(-context // PAGE_TOKENS)].long()
            keys, values = (
                x.transpose(0, 1).flatten(1, 2)[:, :context] for x in load(self.kv, LAYER, pages, torch.float64)
            )
            for row in range(self.rows):
                query = self.query[s * self.rows + row].double().view(self.kv_heads, group, HEAD_DIM)
                seen = context - self.rows + row + 1
                scores = query @ keys[:, :seen].mT * self.shape.softmax_scale
                outputs.append((torch.softmax(scores, -1) @ values[:, :seen]).flatten())
        gate = torch.sigmoid(self.projected[:, self.shape.gate_columns].double())
        return torch.stack(outputs) * gate


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def test_one_row() -> None:
    paged = Paged("nvfp4", [200])
    assert distance(paged.run(PagedPlan("nvfp4", 1, 1, 4), slots=2), paged.expected()) < ROUNDING


@pytest.mark.parametrize(
    ("tiles", "step_pages", "entries", "heads", "rows", "contexts", "slots"),
    [
        (1, 2, 3, 6, 1, [330, 1, 64], 6),
        (3, 1, 4, 6, 4, [4, 200], 5),
        (3, 2, 3, 6, 3, [150, 3], 4),
        (6, 1, 3, 6, 8, [77], 1),
    ],
    ids=str,
)
def test_rows(
    tiles: int, step_pages: int, entries: int, heads: int, rows: int, contexts: list[int], slots: int
) -> None:
    paged = Paged("nvfp4", contexts, heads, rows=rows)
    plan = PagedPlan("nvfp4", tiles, step_pages, entries)
    assert distance(paged.run(plan, slots), paged.expected()) < ROUNDING


@pytest.mark.parametrize("codec", ["fp8", "int8", "k8v4", "bf16"])
@pytest.mark.parametrize(("tiles", "entries", "rows"), [(1, 4, 1), (3, 3, 4)], ids=["1 row", "4 rows"])
def test_codecs(codec: str, tiles: int, entries: int, rows: int) -> None:
    paged = Paged(codec, [150, 5], rows=rows)
    assert distance(paged.run(PagedPlan(codec, tiles, 1, entries - (codec == "bf16")), 3), paged.expected()) < ROUNDING


@pytest.mark.parametrize(("tiles", "step_pages"), [(3, 1), (3, 2), (6, 1)], ids=str)
def test_products_of_a_warpgroup(tiles: int, step_pages: int) -> None:
    paged = Paged("nvfp4", [90, 150], rows=8 * tiles // 6)
    plan = PagedPlan("nvfp4", tiles, step_pages, 3, warpgroup=True)
    assert distance(paged.run(plan, 4), paged.expected()) < ROUNDING
