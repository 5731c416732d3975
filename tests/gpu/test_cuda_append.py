"""Writes to the cache by CUDA kernels: queries and keys to one rounding, the rest to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.hadamard import hadamard
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import append_ops
from kernels_numba.shapes import AttentionNorms, AttentionShape
from kernels_numba.torch_ops import attention as torch_attention
from kernels_numba.torch_ops.attention import _rotated
from tests.gpu.test_cuda_attention import LARGE, LAYER, LAYERS, PAGE_TOKENS, SHAPES, distance, normal, random_kv, report

pytestmark = pytest.mark.gpu


@dataclass
class Append:
    """Rows for shuffled places of a cache of random numbers."""

    shape: AttentionShape
    rows: int

    def __post_init__(self) -> None:
        shape, rows = self.shape, self.rows
        self.paged = random_kv(shape, rows // 40 + 2, 0)
        self.projected = 3 * normal(1, rows, shape.projected_width)
        weights = 1 + normal(2, 2, shape.head_dim).float() / 4
        self.norms = AttentionNorms(weights[0].contiguous(), weights[1].contiguous(), 1e-6)
        angles = 100 * normal(3, rows, shape.rotary_dim // 2).float()
        self.cos, self.sin = angles.cos(), angles.sin()
        places = torch.randperm(self.paged.pages.shape[0] * PAGE_TOKENS, generator=torch.Generator().manual_seed(4))
        self.slots = places[:rows].cuda()

    def copy(self) -> PagedKv:
        return PagedKv(self.paged.pages.clone(), self.paged.layout)

    def ours(self, kv: PagedKv) -> Tensor:
        return append_ops.append_kv(self.projected, self.norms, self.cos, self.sin, kv, LAYER, self.slots, self.shape)

    def torchs(self, kv: PagedKv) -> Tensor:
        return torch_attention.append_kv(
            self.projected, self.norms, self.cos, self.sin, kv, LAYER, self.slots, self.shape
        )

    def exact(self) -> tuple[Tensor, Tensor]:
        """Queries and keys in float64."""
        shape = self.shape
        projected, cos, sin = self.projected.double(), self.cos.double(), self.sin.double()

        def normed(x: Tensor, weight: Tensor) -> Tensor:
            x = x.reshape(x.shape[0], x.shape[1] // shape.head_dim, shape.head_dim)
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.norms.eps) * weight.double()
            return _rotated(x, cos, sin)

        width = shape.query_width
        return (
            normed(projected[:, :width], self.norms.query),
            normed(projected[:, 2 * width : 2 * width + shape.kv_width], self.norms.key),
        )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 3, 8, 300, 4096])
def test_append(device: torch.device, shape: AttentionShape, rows: int) -> None:
    """Values to the bit, queries and keys to one rounding; nothing else changes."""
    append = Append(shape, rows)
    kv, before = append.copy(), append.paged.plain
    query, cached = append.ours(kv), kv.plain
    assert query.shape == (rows, shape.heads, shape.head_dim)
    pages, offsets = append.slots // PAGE_TOKENS, append.slots % PAGE_TOKENS
    keys = cached[pages, LAYER, :, 0, offsets]
    values = append.projected[:, 2 * shape.query_width + shape.kv_width :].view(rows, shape.kv_heads, shape.head_dim)
    assert torch.equal(cached[pages, LAYER, :, 1, offsets], values)
    cached[pages, LAYER, :, :, offsets] = before[pages, LAYER, :, :, offsets]
    assert torch.equal(cached, before)
    if rows:
        exact_query, exact_keys = append.exact()
        theirs = append.torchs(kv)
        report(f"append {rows} queries", query, theirs, exact_query)
        report(f"append {rows} keys", keys, cached[pages, LAYER, :, 0, offsets], exact_keys)
        torch.testing.assert_close(query.double(), exact_query, atol=1e-4, rtol=2**-8)
        torch.testing.assert_close(keys.double(), exact_keys, atol=1e-4, rtol=2**-8)


def test_append_in_a_graph(device: torch.device) -> None:
    append = Append(LARGE, 4)
    kv = append.copy()
    append.ours(kv)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        query = append.ours(kv)
    for shift in (1, 77):
        append.slots.copy_((append.slots + shift) % (kv.pages.shape[0] * PAGE_TOKENS))
        append.projected.neg_()
        graph.replay()
        expected_kv = PagedKv(kv.pages.clone(), kv.layout)
        assert torch.equal(query, append.ours(expected_kv))
        assert torch.equal(kv.plain, expected_kv.plain)


@pytest.mark.parametrize("codec", ["fp8", "int8", "nvfp4", "k8v4"])
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_the_bytes_are_those_of_the_plain_encoder(device: torch.device, codec: str, rows: int) -> None:
    """For keys that norm and rope leave exact; nothing else changes. Some rows are tiny, huge or no numbers."""
    shape = LARGE
    kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], LAYERS, shape.kv_heads, shape.head_dim), rows // 40 + 2, device)
    kv.pages.random_(256)
    projected = normal(1, rows, shape.projected_width)
    keys, values = projected[:, 2 * shape.query_width :].view(rows, 2, shape.kv_heads, shape.head_dim).unbind(1)
    keys.copy_(torch.where(keys < 0, -1, 1))
    values *= 10 ** (3 * normal(2, rows, shape.kv_heads, 1))
    values[rows // 2, 0, ::50] = torch.nan
    values[rows // 3, 1, 3:200:60] = -torch.inf
    values[rows // 4, 2] = 0
    weight = torch.randn(256, generator=torch.Generator().manual_seed(3))
    if rows == 8:  # they cancel in half of the dimensions, and leave what the order of additions rounded
        weight[[0, 128]] = 2.0**20
    norms = AttentionNorms(torch.ones(256, device=device), weight.to(device), 0.0)
    flat = torch.ones(rows, 32, device=device), torch.zeros(rows, 32, device=device)
    slots = torch.randperm(kv.pages.shape[0] * PAGE_TOKENS, generator=torch.Generator().manual_seed(4))[:rows]
    expected = PagedKv(kv.pages.cpu(), kv.layout)
    query = append_ops.append_kv(projected, norms, *flat, kv, LAYER, slots.cuda(), shape)
    store(expected, LAYER, slots, (keys * norms.key.bfloat16()).cpu(), values.cpu())
    assert torch.equal(kv.pages.cpu(), expected.pages)
    plain = projected[:, : shape.query_width].view(rows, shape.heads, 256).double()
    turned = hadamard((plain * torch.rsqrt(plain.square().mean(-1, keepdim=True))).cpu()).to(device)
    torch.testing.assert_close(query.double(), turned, atol=1e-4, rtol=2**-8)


@pytest.mark.parametrize("codec", ["fp8", "int8", "nvfp4", "k8v4"])
def test_quantised_rows_are_near(device: torch.device, codec: str) -> None:
    """With norm and rope: as near to the exact keys as what the torch op stores."""
    append = Append(LARGE, 300)
    layout = KvLayout(KV_CODECS[codec], LAYERS, LARGE.kv_heads, LARGE.head_dim)
    caches = [PagedKv.zeros(layout, append.paged.pages.shape[0], device) for _ in range(2)]
    query, theirs = append.ours(caches[0]), append.torchs(caches[1])
    report(f"{codec} queries", query, theirs, hadamard(append.exact()[0].cpu()).to(device))
    pages, offsets = append.slots // PAGE_TOKENS, append.slots % PAGE_TOKENS
    exact = hadamard(append.exact()[1].cpu()).to(device)
    errors = []
    for cache in caches:
        keys = load(cache, LAYER, torch.arange(cache.pages.shape[0], device=device), torch.float32)[0]
        errors.append(distance(keys[pages, :, offsets], exact))
    print(f"{codec} keys: {errors[0]:.3e}, torch {errors[1]:.3e}")
    assert errors[0] <= 1.02 * errors[1]
