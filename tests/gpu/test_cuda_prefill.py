"""Attention of many rows by CUDA kernels and libraries: as near to float64 as the torch op is, for every codec."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_prefill_ops as prefill_ops
from kernels_numba.nvidia.attention_kernels import EXPANDED
from kernels_numba.ops import AttentionPrefill
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops import attention as torch_attention
from tests.gpu.test_cuda_attention import LARGE, LAYER, LAYERS, PAGE_TOKENS, SHAPES, distance, normal

pytestmark = pytest.mark.gpu

SEVERAL = [(2, 2), (17, 64), (64, 64), (100, 5000), (1000, 1003), (2048, 2048), (2500, 9001)]
PREFILL_SHAPES = {name: shape for name, shape in SHAPES.items() if shape.head_dim == 256}


@dataclass
class Rows:
    """The last tokens of one sequence on shuffled pages; all other bytes are 0xFF."""

    codec: str
    shape: AttentionShape
    tokens: int
    context: int
    paged: PagedKv = field(init=False)

    def __post_init__(self) -> None:
        shape, count = self.shape, -(-self.context // PAGE_TOKENS)
        layout = KvLayout(KV_CODECS[self.codec], LAYERS, shape.kv_heads, shape.head_dim)
        self.paged = PagedKv.zeros(layout, count + 1, "cuda")
        self.paged.pages.fill_(0xFF)
        self.pages = (torch.randperm(count, generator=torch.Generator().manual_seed(0)) + 1).int().cuda()
        for begin in range(0, self.context, 8192):
            positions = torch.arange(begin, min(begin + 8192, self.context), device="cuda")
            slots = self.pages[positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS
            new = normal(begin, len(positions), 2, shape.kv_heads, shape.head_dim)
            store(self.paged, LAYER, slots, new[:, 0], new[:, 1])
        self.query = normal(8, self.tokens, shape.heads, shape.head_dim)
        self.projected = normal(9, self.tokens, shape.projected_width)

    def by(self, op: AttentionPrefill) -> Tensor:
        return op(self.query, self.projected, self.paged, LAYER, self.pages, self.context, self.shape)

    def exact(self, some: Tensor) -> Tensor:
        """Of ``some`` rows, by the formula in float64, over what is stored."""
        shape, outputs = self.shape, []
        group = shape.heads // shape.kv_heads
        hidden = torch.arange(self.context, device="cuda") > (self.context - self.tokens + some)[:, None]
        cached = load(self.paged, LAYER, self.pages.long(), torch.float32)
        for head in range(shape.kv_heads):
            key, value = (part[:, head].flatten(0, 1)[: self.context].double() for part in cached)
            for query in self.query[some, head * group : (head + 1) * group].double().unbind(1):
                scores = (query @ key.T * shape.softmax_scale).masked_fill(hidden, -torch.inf)
                outputs.append(torch.softmax(scores, 1) @ value)
        gate = torch.sigmoid(self.projected[some][:, shape.gate_columns].double())
        return torch.cat(outputs, 1) * gate

    def check(self, bound: float = 4e-3) -> Tensor:
        found = self.by(prefill_ops.attention_prefill)
        some = torch.cat([torch.arange(min(self.tokens, 20)), torch.randint(self.tokens, (40,))]).cuda()
        error = distance(found[some], self.exact(some))
        print(f"{self.codec} prefill of {self.tokens} at {self.context}: {error:.2e}")
        assert found.dtype == torch.bfloat16
        assert error <= bound
        return found


@pytest.mark.parametrize("shape", PREFILL_SHAPES.values(), ids=PREFILL_SHAPES)
@pytest.mark.parametrize(("tokens", "context"), SEVERAL, ids=str)
def test_shapes(device: torch.device, shape: AttentionShape, tokens: int, context: int) -> None:
    Rows("nvfp4", shape, tokens, context).check()


@pytest.mark.parametrize("codec", EXPANDED)
@pytest.mark.parametrize(("tokens", "context"), [(5, 700), (2048, 40001)], ids=str)
def test_codecs(device: torch.device, codec: str, tokens: int, context: int) -> None:
    """As near as the torch op, which reads the same bytes."""
    rows = Rows(codec, LARGE, tokens, context)
    found = rows.check()
    if tokens < 100:
        some = torch.arange(tokens).cuda()
        theirs = distance(rows.by(torch_attention.attention_prefill), rows.exact(some))
        assert distance(found, rows.exact(some)) <= 1.5 * theirs


@pytest.mark.parametrize("tokens", [2, 300, 2048])
def test_a_long_context(device: torch.device, tokens: int) -> None:
    rows = Rows("nvfp4", LARGE, tokens, 262141)
    found = rows.check()
    assert torch.equal(rows.by(prefill_ops.attention_prefill), found)


def test_both_libraries_agree(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows("nvfp4", LARGE, 2048, 50000)
    found = rows.by(prefill_ops.attention_prefill)
    monkeypatch.setattr(prefill_ops, "cudnn_serves", lambda *_: False)
    assert distance(rows.by(prefill_ops.attention_prefill), found.double()) < 4e-3


@pytest.mark.parametrize("tokens", [40, 1500])
def test_nothing_waits(device: torch.device, tokens: int) -> None:
    rows = Rows("fp8", LARGE, tokens, 9000)
    rows.by(prefill_ops.attention_prefill)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows.by(prefill_ops.attention_prefill)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_bounded(device: torch.device) -> None:
    """However long the context is: less than 352 MiB, the output included."""
    rows = Rows("nvfp4", LARGE, 2048, 262141)
    rows.by(prefill_ops.attention_prefill)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rows.by(prefill_ops.attention_prefill)
    assert torch.cuda.max_memory_allocated() - before < 352 << 20
