"""Attention by CUDA kernels: as near to float64 as the torch ops are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_decode_ops
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops import attention as torch_attention

pytestmark = pytest.mark.gpu

PAGE_TOKENS = 64
LAYERS, LAYER = 2, 1
SHAPES = {
    "24q4kv": AttentionShape(heads=24, kv_heads=4, head_dim=256, rotary_dim=64),
    "16q2kv": AttentionShape(heads=16, kv_heads=2, head_dim=256, rotary_dim=64),
    "4q1kv": AttentionShape(heads=4, kv_heads=1, head_dim=256, rotary_dim=64),
    "6q2kv x 128": AttentionShape(heads=6, kv_heads=2, head_dim=128, rotary_dim=32),
    "8q8kv x 64": AttentionShape(heads=8, kv_heads=8, head_dim=64, rotary_dim=64),
}
LARGE = SHAPES["24q4kv"]


def normal(seed: int, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def random_kv(shape: AttentionShape, pages: int, seed: int) -> PagedKv:
    kv = PagedKv.zeros(KvLayout(KV_CODECS["bf16"], LAYERS, shape.kv_heads, shape.head_dim), pages, "cuda")
    kv.plain.copy_(normal(seed, *kv.plain.shape))
    return kv


@dataclass
class Case:
    """Sequences on shuffled pages; what lies outside their contexts is NaN."""

    shape: AttentionShape
    contexts: list[int]
    seed: int = 0

    def __post_init__(self) -> None:
        shape, sequences = self.shape, len(self.contexts)
        counts = [-(-context // PAGE_TOKENS) for context in self.contexts]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(self.seed)) + 1
        table = torch.zeros(sequences, max(counts) + 3, dtype=torch.int32)
        self.paged = random_kv(shape, sum(counts) + 1, self.seed)
        self.kv = self.paged.plain
        self.kv[0] = torch.nan
        self.kv[:, 1 - LAYER] = torch.nan
        for row, (pages, context) in enumerate(zip(torch.split(order, counts), self.contexts, strict=True)):
            table[row, : len(pages)] = pages
            if context % PAGE_TOKENS:
                self.kv[int(pages[-1]), :, :, :, context % PAGE_TOKENS :] = torch.nan
        self.table = table.cuda()
        self.lengths = torch.tensor(self.contexts, device="cuda")
        self.query = normal(self.seed + 1, sequences, shape.heads, shape.head_dim)
        self.projected = normal(self.seed + 2, sequences, shape.projected_width)

    def ours(self) -> Tensor:
        return attention_decode_ops.attention_decode(
            self.query, self.projected, self.paged, LAYER, self.table, self.lengths, self.shape
        )

    def torchs(self) -> Tensor:
        return torch_attention.attention_decode(
            self.query, self.projected, self.paged, LAYER, self.table, self.lengths, self.shape
        )

    def exact(self) -> Tensor:
        """By the formula in float64, a sequence and a kv head at a time."""
        shape, rows = self.shape, []
        group = shape.heads // shape.kv_heads
        gate = torch.sigmoid(self.projected[:, shape.gate_columns].double())
        for row, context in enumerate(self.lengths.tolist()):
            pages = self.table[row, : -(-context // PAGE_TOKENS)].long()
            for head in range(shape.kv_heads):
                key, value = (self.kv[pages, LAYER, head, i].flatten(0, 1)[:context].double() for i in range(2))
                query = self.query[row, head * group : (head + 1) * group].double()
                rows.append(torch.softmax(query @ key.T * shape.softmax_scale, 1) @ value)
        return torch.cat(rows).view(len(self.contexts), -1) * gate


def report(name: str, found: Tensor, torchs: Tensor, expected: Tensor) -> None:
    ours, theirs = distance(found, expected), distance(torchs, expected)
    largest = float((found.double() - expected).abs().max())
    print(f"{name}: {ours:.2e}, torch {theirs:.2e}, largest {largest:.1e} of {float(expected.abs().max()):.1e}")
    assert found.dtype == torch.bfloat16
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "contexts", [[1], [64], [65, 17, 640], [8191], [5, 9000, 64, 128, 33000, 1, 2047, 777]], ids=str
)
def test_decode(device: torch.device, shape: AttentionShape, contexts: list[int]) -> None:
    case = Case(shape, contexts)
    report(f"decode {contexts}", case.ours(), case.torchs(), case.exact())


@pytest.mark.parametrize("contexts", [[262141], [270000, 3]], ids=str)
def test_long_contexts(device: torch.device, contexts: list[int]) -> None:
    case = Case(LARGE, contexts)
    report(f"decode {contexts}", case.ours(), case.torchs(), case.exact())


def test_many_sequences(device: torch.device) -> None:
    case = Case(SHAPES["4q1kv"], [1 + 37 * row % 700 for row in range(300)])
    report("decode of 300 sequences", case.ours(), case.torchs(), case.exact())


def test_one_large_score_takes_all(device: torch.device) -> None:
    """Scores of hundreds, the largest in the middle of the context."""
    case = Case(LARGE, [5000])
    case.query *= 20
    report("decode with large scores", case.ours(), case.torchs(), case.exact())


def test_an_empty_sequence_yields_zeros(device: torch.device) -> None:
    """Whatever its page table says."""
    case = Case(LARGE, [300, 500])
    case.lengths[0] = 0
    case.table[0] = 1 << 30
    out = case.ours()
    assert not out[0].any()
    assert out[1].isfinite().all()


def test_what_is_not_finite_stays_in_its_sequence_and_head(device: torch.device) -> None:
    case = Case(SHAPES["16q2kv"], [1000, 3000, 64])
    before = case.ours()
    case.kv[int(case.table[1, 7]), LAYER, 0, 1, 13] = torch.nan
    after = case.ours()
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    width = case.shape.query_width // 2
    assert after[1, :width].isnan().all()
    assert torch.equal(after[1, width:], before[1, width:])


def test_runs_are_identical(device: torch.device) -> None:
    case = Case(LARGE, [70000, 1200, 3])
    expected = case.ours()
    for _ in range(20):
        assert torch.equal(case.ours(), expected)


def test_a_page_table_may_be_a_view(device: torch.device) -> None:
    case = Case(LARGE, [700, 90])
    expected, case.table = case.ours(), torch.cat([case.table, case.table], 1)[:, : case.table.shape[1]]
    assert torch.equal(case.ours(), expected)


def test_nothing_waits_and_a_graph_replays(device: torch.device) -> None:
    """Lengths and page tables may change between replays, over the whole range."""
    case = Case(LARGE, [9000, 40, 800])
    case.ours()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.ours()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = case.ours()
    for lengths in ([1, 2, 3], [40, 40, 40], [8999, 1, 64], [9000, 40, 800]):
        case.lengths.copy_(torch.tensor(lengths))
        graph.replay()
        assert torch.equal(replayed, case.ours())
        assert distance(replayed, case.exact()) < 4e-3
    other = Case(LARGE, [9000, 40, 800], seed=5)
    for name in ("kv", "table", "query", "projected"):
        getattr(case, name).copy_(getattr(other, name))
    graph.replay()
    assert torch.equal(replayed, other.ours())


def test_torch_takes_other_sizes(device: torch.device) -> None:
    for shape in (AttentionShape(60, 1, 256, 64), AttentionShape(2, 1, 32, 8)):
        case = Case(shape, [100, 7])
        assert torch.equal(case.ours(), case.torchs())
