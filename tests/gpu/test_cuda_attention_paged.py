"""Decode attention of several rows over every codec on a GPU, against float64 on what the pages hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_decode_kernels import served_plans
from kernels_numba.nvidia.attention_decode_ops import attention_decode
from kernels_numba.nvidia.launch import device_of
from kernels_numba.shapes import AttentionShape

pytestmark = pytest.mark.gpu

HEAD_DIM, LAYERS, LAYER = 256, 2, 1
ROUNDING = 2.5e-3
"""Of a result in bfloat16 and of probabilities in 16 bits, by norm."""
CODECS = ("nvfp4", "fp8", "int8", "k8v4", "bf16")
SHAPES = {
    "24q4kv": AttentionShape(24, 4, HEAD_DIM, 64),
    "16q2kv": AttentionShape(16, 2, HEAD_DIM, 64),
    "4q1kv": AttentionShape(4, 1, HEAD_DIM, 64),
}
LARGE = SHAPES["24q4kv"]


def normal(seed: int, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@dataclass
class Case:
    """Rows of sequences on shuffled pages; every byte that is not theirs is 0xFF, a NaN where there are such."""

    codec: str
    shape: AttentionShape
    contexts: list[int]
    rows: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        shape, counts = self.shape, [-(-context // PAGE_TOKENS) for context in self.contexts]
        layout = KvLayout(KV_CODECS[self.codec], LAYERS, shape.kv_heads, HEAD_DIM)
        self.kv = PagedKv.zeros(layout, sum(counts) + 1, "cuda")
        self.kv.pages.fill_(0xFF)
        order = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1).cuda()
        self.table = torch.full((len(counts), max(counts) + 3), 1 << 30, dtype=torch.int32, device="cuda")
        for row, (own, context) in enumerate(zip(torch.split(order, counts), self.contexts, strict=True)):
            self.table[row, : len(own)] = own
            for begin in range(0, context, 16384):
                positions = torch.arange(begin, min(context, begin + 16384), device="cuda")
                slots = own[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
                size = (len(slots), shape.kv_heads, HEAD_DIM)
                spread = self.scale * torch.exp(normal(row + begin + 3, len(slots), 1, 1))
                store(
                    self.kv, LAYER, slots, normal(row + begin, *size) * spread, normal(row + begin + 1, *size) * spread
                )
        self.lengths = torch.tensor(self.contexts, device="cuda")
        count = len(self.contexts) * self.rows
        self.query = (normal(1, count, shape.heads, HEAD_DIM) / self.scale).bfloat16()
        self.projected = normal(2, count, shape.projected_width).bfloat16()

    def ours(self) -> Tensor:
        return attention_decode(self.query, self.projected, self.kv, LAYER, self.table, self.lengths, self.shape)

    def exact(self) -> Tensor:
        """By the formula, a sequence and a kv head at a time."""
        shape, group, outputs = self.shape, self.shape.heads // self.shape.kv_heads, []
        for s, context in enumerate(self.lengths.tolist()):
            pages = self.table[s, : -(-context // PAGE_TOKENS)].long()
            parts = [load(self.kv, LAYER, part, torch.float32) for part in torch.split(pages, 256)]
            queries = self.query[s * self.rows : (s + 1) * self.rows].double()
            hidden = torch.arange(context, device="cuda") > (
                context - self.rows + torch.arange(self.rows, device="cuda")[:, None, None]
            )
            heads = []
            for head in range(shape.kv_heads):
                key, value = (
                    torch.cat([p[i][:, head] for p in parts]).flatten(0, 1)[:context].double() for i in range(2)
                )
                scores = queries[:, head * group : (head + 1) * group] @ key.T * shape.softmax_scale
                heads.append(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ value)
            outputs.append(torch.cat(heads, 1).flatten(1))
        return torch.cat(outputs) * torch.sigmoid(self.projected[:, shape.gate_columns].double())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 11, 16])
@pytest.mark.parametrize("contexts", [[16], [64], [65, 17, 640], [8191], [50, 9000, 64, 128, 33000, 16, 2047]], ids=str)
def test_rows(device: torch.device, codec: str, rows: int, contexts: list[int]) -> None:
    case = Case(codec, LARGE, contexts, rows)
    assert distance(case.ours(), case.exact()) < ROUNDING


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_shapes(device: torch.device, codec: str, shape: AttentionShape, rows: int) -> None:
    case = Case(codec, shape, [700, 3000], rows)
    assert distance(case.ours(), case.exact()) < ROUNDING


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_long_contexts(device: torch.device, codec: str, rows: int) -> None:
    case = Case(codec, LARGE, [262141], rows)
    assert distance(case.ours(), case.exact()) < ROUNDING


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("scale", [2.0**-9, 2.0**9], ids=["small", "large"])
def test_sizes_of_numbers(device: torch.device, codec: str, scale: float) -> None:
    """Scales near both ends of what their formats hold."""
    for rows in (1, 4):
        case = Case(codec, LARGE, [1000], rows, scale=scale)
        assert distance(case.ours(), case.exact()) < ROUNDING


@pytest.mark.parametrize("codec", CODECS)
def test_maxima_that_grow(device: torch.device, codec: str) -> None:
    """Queries so large that one score after the other takes all. Here rounding keys to halves shows."""
    for rows in (1, 4, 8):
        case = Case(codec, LARGE, [30000], rows)
        case.query *= 20
        assert distance(case.ours(), case.exact()) < 2 * ROUNDING


def test_every_kernel_serves(device: torch.device) -> None:
    arch = device_of(device).arch
    assert [plan.tiles for plan in served_plans("nvfp4", arch)] == [1, 3, 6]
    assert served_plans("nvfp4", arch)[-1].warpgroup == (arch == "sm_90")


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_sequence_yields_zeros(device: torch.device, codec: str) -> None:
    case = Case(codec, LARGE, [300, 500], 4)
    case.lengths[0] = 0
    case.table[0] = 1 << 30
    out = case.ours()
    assert not out[:4].any()
    assert out[4:].isfinite().all()


@pytest.mark.parametrize("codec", CODECS)
def test_a_graph_replays(device: torch.device, codec: str) -> None:
    """Lengths may change between replays, over the whole range; nothing waits, and runs are identical."""
    case = Case(codec, LARGE, [9000, 40, 800], 4)
    expected = case.ours()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.ours()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = case.ours()
    for lengths in ([4, 5, 6], [40, 40, 40], [8999, 10, 64], [9000, 40, 800]):
        case.lengths.copy_(torch.tensor(lengths))
        graph.replay()
        assert torch.equal(replayed, case.ours())
        assert distance(replayed, case.exact()) < ROUNDING
    assert torch.equal(replayed, expected)
