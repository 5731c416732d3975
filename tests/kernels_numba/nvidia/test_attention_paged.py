"""Decode attention of several rows over any codec, as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.hadamard import hadamard
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_combine, attention_decode_ops, attention_paged, attention_paged_fp4
from kernels_numba.nvidia.attention_codec_fp4 import Fp4Plan
from kernels_numba.nvidia.attention_decode_kernels import COMBINE_SHARED_BYTES, PAGED, served_plans
from kernels_numba.nvidia.attention_decode_plan import PAGED_WARPS, SCORE_SCALES, PagedPlan
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS
from kernels_numba.nvidia.kernel import ARCHS
from kernels_numba.nvidia.registry import BY_NAME
from kernels_numba.shapes import AttentionShape
from tests.kernels_numba.nvidia.emulator import EmulatedDevice, launch

HEAD_DIM, LAYERS, LAYER = 256, 2, 1
ROUNDING = 2.5e-3
"""Of a result in bfloat16 and of probabilities in 16 bits, by norm."""


def generated(plan: PagedPlan) -> tuple[str, dict[str, int], int]:
    """Source and waits of a plan's kernel, and by which power of two its scores are too small."""
    if isinstance(plan, Fp4Plan):
        sizes = plan.tiles, plan.step_pages, plan.entries
        return attention_paged_fp4.source(*sizes), attention_paged_fp4.waits(*sizes), 0
    arguments = plan.codec, plan.tiles, plan.step_pages, plan.entries, plan.warpgroup
    return attention_paged.source(*arguments), attention_paged.waits(*arguments), SCORE_SCALES[plan.codec]


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

    def rewrite(self, keys: Tensor, values: Tensor) -> None:
        """The whole context of the only sequence, ``[pages, KV, PAGE_TOKENS, D]``."""
        context = self.contexts[0]
        positions = torch.arange(context)
        slots = self.table[0].long()[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
        store(self.kv, LAYER, slots, *(x.transpose(1, 2).flatten(0, 1)[:context] for x in (keys, values)))

    def run(self, plan: PagedPlan, slots: int, late: bool = True) -> Tensor:
        """``late``: asynchronous copies arrive at the last moment, not at once."""
        shape, sequences = self.shape, len(self.contexts)
        group, layout = shape.heads // shape.kv_heads, self.kv.layout
        source, waits, score_scale = generated(plan)
        exponent = np.float32(shape.softmax_scale * math.log2(math.e) * 2.0**score_scale)
        partial = torch.full((slots, shape.kv_heads, plan.tiles, 16, 32, 4), torch.nan)
        statistics = torch.full((slots, shape.kv_heads, plan.tiles, 8, 2), torch.nan)
        out = torch.full((len(self.query), shape.query_width), torch.nan).bfloat16()
        kv = self.kv.pages.data_ptr() + layout.layer_bytes * LAYER
        counts = (group, self.rows, self.rows, 0)
        launch(
            source,
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


@pytest.mark.parametrize(
    ("tiles", "step_pages", "entries", "heads", "rows", "contexts", "slots"),
    [
        (1, 2, 3, 6, 1, [200, 1, 64], 6),
        (1, 1, 4, 3, 2, [130], 2),
        (3, 1, 4, 6, 4, [4, 100], 5),
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
@pytest.mark.parametrize(("tiles", "rows"), [(1, 1), (3, 4)], ids=["1 row", "4 rows"])
def test_codecs(codec: str, tiles: int, rows: int) -> None:
    plan = next(plan for plan in PAGED if (plan.codec, plan.tiles) == (codec, max(tiles, 3 * (codec == "bf16"))))
    paged = Paged(codec, [100, 5], rows=rows)
    assert distance(paged.run(plan, 3), paged.expected()) < ROUNDING


def test_products_of_a_warpgroup() -> None:
    paged = Paged("nvfp4", [90], rows=8)
    (plan,) = (plan for plan in PAGED if plan.warpgroup)
    assert distance(paged.run(plan, 1), paged.expected()) < ROUNDING


def test_scales_of_rounded_keys() -> None:
    """Where codes are scaled before the product."""
    paged = Paged("int8", [70], rows=6)
    assert distance(paged.run(PagedPlan("int8", 6, 1, 3), 1), paged.expected()) < ROUNDING


def test_several_kv_heads_and_copies_that_arrive_at_once() -> None:
    paged = Paged("nvfp4", [130], heads=2, kv_heads=2, rows=2)
    assert distance(paged.run(PagedPlan("nvfp4", 1, 1, 4), 2, late=False), paged.expected()) < ROUNDING


@pytest.mark.parametrize("codec", ["nvfp4", "int8"])
def test_references_are_replaced(codec: str) -> None:
    """Scores grow from page to page, by more than the headroom; the first rows of a page are the largest."""
    paged = Paged(codec, [250], rows=1)
    keys, values = load(paged.kv, LAYER, paged.table[0, :4].long(), torch.float32)
    growing = torch.arange(1, 5)[:, None, None, None] * torch.linspace(8, 1, PAGE_TOKENS)[:, None]
    paged.rewrite(hadamard(keys) * growing, values)  # stored keys are turned, and so are these, back
    plan = PagedPlan(codec, 1, 1, 4)
    expected = paged.expected()
    assert distance(paged.run(plan, 1), expected) < ROUNDING


@pytest.mark.parametrize("scale", [2.0**-9, 2.0**8], ids=["small", "large"])
@pytest.mark.parametrize("codec", ["nvfp4", "fp8", "int8"])
def test_the_whole_range_of_scales(codec: str, scale: float) -> None:
    """Subnormal scales of NVFP4, and scales whose products with probabilities leave the normal halves."""
    paged = Paged(codec, [60], key_scale=scale, value_scale=scale)
    paged.query = (paged.query.double() / scale).bfloat16()
    plan = next(plan for plan in PAGED if (plan.codec, plan.tiles) == (codec, 1))
    assert distance(paged.run(plan, 1), paged.expected()) < ROUNDING


def test_an_empty_sequence_yields_zeros() -> None:
    paged = Paged("nvfp4", [70, 5], heads=2)
    expected = paged.expected()
    paged.lengths[1] = 0
    paged.table[1] = 1 << 30
    out = paged.run(PagedPlan("nvfp4", 1, 1, 4), 4)
    assert not out[1].any()
    assert distance(out[:1], expected[:1]) < ROUNDING


class Device(EmulatedDevice):
    """One that has no kernels of many columns."""

    arch, index = "sm_80", 0

    def kernel(self, name: str) -> Callable[..., None]:
        spec = BY_NAME[name]
        module = importlib.import_module(f"kernels_numba.nvidia.{spec.module}")
        types: dict[str, Callable[[Any], Any]] = {"l": int, "i": int, "f": np.float32}

        def run(grid: tuple[int, int, int], *arguments: Any, shared_bytes: int = 0, programmatic: bool = False) -> None:
            self.launched.append(name)
            assert shared_bytes <= self.shared_bytes_per_block
            launch(
                module.source(*spec.arguments),
                grid,
                spec.threads,
                [types[letter](value) for letter, value in zip(spec.signature, arguments, strict=True)],
                self.tensors,
                shared_bytes=shared_bytes,
                waits=module.waits(*spec.arguments) if hasattr(module, "waits") else None,
            )

        return run


def test_rows_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows of six heads where 24 columns are the most: four, then one."""
    paged, device = Paged("fp8", [20, 9], rows=5), Device(random.Random(0))
    device.tensors += [paged.query, paged.projected, paged.kv.pages, paged.table, paged.lengths]
    monkeypatch.setattr(attention_decode_ops, "device_of", lambda _: device)
    monkeypatch.setattr(attention_decode_ops, "resident_blocks", lambda *_: 2)
    monkeypatch.setattr(attention_decode_ops, "integers", lambda *_: True)
    monkeypatch.setattr(torch, "empty", device.empty)
    out = attention_decode_ops.attention_decode(
        paged.query, paged.projected, paged.kv, LAYER, paged.table, paged.lengths, paged.shape
    )
    assert device.launched == [
        *("attention_paged_fp8_3x1", "attention_combine_256"),
        *("attention_paged_fp8_1x1", "attention_combine_256"),
    ]
    assert distance(out, paged.expected()) < ROUNDING


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("codec", ["nvfp4", "fp8", "int8", "k8v4", "bf16"])
def test_kernels_of_a_device(codec: str, arch: str) -> None:
    """Each number of tiles once, from few to many; in the shared memory of a block."""
    plans = served_plans(codec, arch)
    tiles = [plan.tiles for plan in plans]
    assert tiles == sorted(set(tiles))
    assert tiles[-1] == (3 if arch in ("sm_80", "sm_86", "sm_89") else 6)
    assert tiles[0] == (3 if codec == "bf16" else 1)
    assert all(plan.shared_bytes <= 99 << 10 for plan in plans)
    assert [plan for plan in plans if plan.warpgroup] == (
        list(plans[-1:]) if (codec, arch) == ("nvfp4", "sm_90") else []
    )
