"""Caches of every codec through the ops: bytes against the encoders, attention against float64 on the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import BF16, KV_CODECS, PAGE_TOKENS, KvCodec
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionNorms, AttentionShape
from tests.kernels_numba.inputs import Random

LAYERS, LAYER = 2, 1
QUANTISED = ["fp8", "int8", "nvfp4", "k8v4"]
ALL = [*QUANTISED, "bf16", "fp32"]
SHAPES = [
    AttentionShape(heads=4, kv_heads=1, head_dim=256, rotary_dim=64),
    AttentionShape(heads=6, kv_heads=2, head_dim=128, rotary_dim=32),
    AttentionShape(heads=3, kv_heads=3, head_dim=64, rotary_dim=64),
]


def shape_id(shape: AttentionShape) -> str:
    return f"{shape.heads}q{shape.kv_heads}kv x {shape.head_dim}"


def empty(codec: str | KvCodec, shape: AttentionShape, pages: int) -> PagedKv:
    codec = KV_CODECS[codec] if isinstance(codec, str) else codec
    return PagedKv.zeros(KvLayout(codec, LAYERS, shape.kv_heads, shape.head_dim), pages)


@dataclass(frozen=True)
class Appends:
    """Inputs of ``append_kv`` whose keys are exact: rows of ±1 have the norm 1, and angles are quarter turns."""

    shape: AttentionShape
    norms: AttentionNorms
    projected: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def random(cls, shape: AttentionShape, tokens: int, seed: int = 0) -> Appends:
        random = Random(seed)
        projected = random.normal(tokens, shape.projected_width).float()
        values = 2 * shape.query_width + shape.kv_width
        projected[:, :values] = projected[:, :values].sign()
        weights = [(random.normal(shape.head_dim) * 2 ** random.normal(shape.head_dim)).float() for _ in range(2)]
        quarter = (10 * random.normal(tokens, shape.rotary_dim // 2)).long() % 4
        cos, sin = torch.tensor([1.0, 0, -1, 0])[quarter], torch.tensor([0.0, 1, 0, -1])[quarter]
        return cls(shape, AttentionNorms(weights[0], weights[1], 0.0), projected, cos, sin)

    def rows(self, first: int, end: int) -> Appends:
        part = slice(first, end)
        return Appends(self.shape, self.norms, self.projected[part], self.cos[part], self.sin[part])

    def by(self, ops: OpTable, kv: PagedKv, slots: Tensor) -> Tensor:
        return ops.append_kv(self.projected, self.norms, self.cos, self.sin, kv, LAYER, slots, self.shape)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Keys and values ``[N, KV, D]``, exact."""
        shape = self.shape
        key, value = self.projected[:, 2 * shape.query_width :].view(-1, 2, shape.kv_heads, shape.head_dim).unbind(1)
        return torch.stack(
            [
                reference.rotate(row * self.norms.key, cos, sin)
                for row, cos, sin in zip(key, self.cos, self.sin, strict=True)
            ]
        ), value


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("tokens", [1, 70])
def test_appends_write_what_the_encoders_say(ops: OpTable, shape: AttentionShape, codec: str, tokens: int) -> None:
    """To the byte, and nothing else."""
    appends, pages = Appends.random(shape, tokens), 3
    slots = Random(1).permutation(pages * PAGE_TOKENS)[:tokens]
    kv, expected = empty(codec, shape, pages), empty(codec, shape, pages)
    for cache in (kv, expected):
        cache.pages.fill_(0x55)
    query = appends.by(ops, kv, slots)
    store(expected, LAYER, slots, *appends.vectors())
    assert torch.equal(kv.pages, expected.pages)
    assert (kv.pages != 0x55).any()
    exact = reference.append_kv(
        appends.projected.double(),
        AttentionNorms(appends.norms.query.double(), appends.norms.key.double(), 0.0),
        appends.cos.double(),
        appends.sin.double(),
        expected,
        LAYER,
        slots,
        shape,
    )
    assert torch.equal(kv.pages, expected.pages), "the reference writes the same"
    torch.testing.assert_close(query.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("codec", QUANTISED)
def test_appends_of_the_smallest_and_largest_numbers(ops: OpTable, codec: str) -> None:
    """Scales that underflow, are subnormal or saturate, zeros of both signs, midpoints between codes."""
    shape, tokens = SHAPES[2], 64
    appends = Appends.random(shape, tokens)
    values = appends.projected[:, 2 * shape.query_width + shape.kv_width :]
    values *= 2.0 ** torch.linspace(-60, 60, tokens)[:, None]
    values[0], values[1], values[2] = 0, -0.0, torch.arange(shape.kv_width) % 25 / 4 - 3
    for exponent in (-30, -20, -10, 0, 10, 20, 40):
        weight = appends.norms.key * 2.0**exponent
        weight[10], weight[11] = 0, -0.0
        scaled = replace(appends, norms=AttentionNorms(appends.norms.query, weight, 0.0))
        kv, expected = empty(codec, shape, 1), empty(codec, shape, 1)
        scaled.by(ops, kv, torch.arange(tokens))
        store(expected, LAYER, torch.arange(tokens), *scaled.vectors())
        assert torch.equal(kv.pages, expected.pages)


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 63, 64, 65, 1000])
def test_bytes_do_not_depend_on_who_wrote_them(ops: OpTable, codec: str, tokens: int) -> None:
    """All at once, one by one, and in pieces."""
    shape = SHAPES[1]
    appends, slots = Appends.random(shape, tokens), torch.arange(tokens) + 37
    caches = [empty(codec, shape, 17) for _ in range(3)]
    for cache, most in zip(caches, (tokens, 1, 7), strict=True):
        for first in range(0, tokens, most):
            appends.rows(first, first + most).by(ops, cache, slots[first : first + most])
    for cache in caches[1:]:
        assert torch.equal(cache.pages, caches[0].pages)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("codec", ALL)
def test_stored_numbers_do_not_depend_on_the_position(ops: OpTable, shape: AttentionShape, codec: str) -> None:
    appends, kv = Appends.random(shape, 20), empty(codec, shape, 4)
    for offset in (0, PAGE_TOKENS + 37):
        appends.by(ops, kv, torch.arange(20) + offset)
    for stored in load(kv, LAYER, torch.arange(4), torch.float32):
        flat = stored.transpose(1, 2).flatten(0, 1)
        assert torch.equal(flat[:20], flat[PAGE_TOKENS + 37 : PAGE_TOKENS + 57])
        assert flat[:20].any(-1).all()


@dataclass(frozen=True)
class Cached:
    """Sequences on shuffled pages; what lies behind their contexts, and all of the other layer, is 0xFF."""

    kv: PagedKv
    shape: AttentionShape
    page_table: Tensor
    contexts: list[int]
    query: Tensor
    projected: Tensor

    @classmethod
    def random(cls, codec: str | KvCodec, shape: AttentionShape, contexts: list[int], rows: int) -> Cached:
        random, most = Random(2), -(-max(contexts) // PAGE_TOKENS)
        table = random.permutation(most * len(contexts) + 1)[1:].view(len(contexts), most)
        kv = empty(codec, shape, table.numel() + 1)
        kv.pages.fill_(0xFF)
        for row, context in zip(table, contexts, strict=True):
            positions = torch.arange(context)
            slots = row[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
            vectors = [random.normal(context, shape.kv_heads, shape.head_dim) for _ in range(2)]
            store(kv, LAYER, slots, *vectors)
        query = random.normal(rows * len(contexts), shape.heads, shape.head_dim)
        return cls(kv, shape, table.int(), contexts, query, random.normal(len(query), shape.projected_width))

    def decode(self, op: Any, dtype: torch.dtype) -> Tensor:
        lengths = torch.tensor(self.contexts)
        arguments = (self.query.to(dtype), self.projected.to(dtype), self.kv, LAYER, self.page_table, lengths)
        found: Tensor = op(*arguments, self.shape)
        return found

    def prefill(self, op: Any, dtype: torch.dtype) -> Tensor:
        arguments = (self.query.to(dtype), self.projected.to(dtype), self.kv, LAYER, self.page_table[0])
        found: Tensor = op(*arguments, self.contexts[0], self.shape)
        return found


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize(
    ("contexts", "rows"), [([1], 1), ([200, 7, 128, 129], 1), ([64, 66, 300], 4), ([130, 16], 16)], ids=str
)
def test_decode(ops: OpTable, shape: AttentionShape, codec: str, contexts: list[int], rows: int) -> None:
    cached = Cached.random(codec, shape, contexts, rows)
    expected = cached.decode(reference.attention_decode, torch.float64)
    assert expected.isfinite().all()
    found = cached.decode(ops.attention_decode, torch.float32)
    assert found.shape == (rows * len(contexts), shape.query_width)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize(("tokens", "context"), [(2, 2), (17, 17), (40, 90), (3, 131)])
def test_prefill(ops: OpTable, shape: AttentionShape, codec: str, tokens: int, context: int) -> None:
    cached = Cached.random(codec, shape, [context], tokens)
    expected = cached.prefill(reference.attention_prefill, torch.float64)
    found = cached.prefill(ops.attention_prefill, torch.float32)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("codec", ALL)
def test_decode_and_prefill_read_the_same(ops: OpTable, codec: str) -> None:
    cached = Cached.random(codec, SHAPES[0], [150], rows=5)
    decoded, prefilled = (
        cached.decode(ops.attention_decode, torch.float32),
        cached.prefill(ops.attention_prefill, torch.float32),
    )
    assert torch.equal(decoded, prefilled)


def test_the_reference_sees_the_rows_before(ops: OpTable) -> None:
    """Row t of a sequence does not see the rows after it."""
    cached = Cached.random("nvfp4", SHAPES[1], [70], rows=3)
    before = cached.decode(ops.attention_decode, torch.float32)
    last = cached.page_table[0, 1] * PAGE_TOKENS + 5
    store(cached.kv, LAYER, last[None].long(), *(100 * Random(9).normal(2, 1, 2, 128)))
    after = cached.decode(ops.attention_decode, torch.float32)
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2], before[2])


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_turning_keys_and_queries_changes_nothing(ops: OpTable, shape: AttentionShape) -> None:
    """But the rounding of bfloat16 keys."""
    turning = KvCodec("bf16, turned", BF16, BF16, rotates_keys=True)
    appends, outputs = Appends.random(shape, 90), []
    for codec in (KV_CODECS["bf16"], turning):
        kv = empty(codec, shape, 2)
        query = appends.by(ops, kv, torch.arange(90)) / 16
        out = ops.attention_prefill(query, appends.projected, kv, LAYER, torch.arange(2).int(), 90, shape)
        outputs.append(out)
    stored = [float(output.norm()) for output in outputs]
    assert 0 < float((outputs[1] - outputs[0]).norm()) < 0.02 * stored[0]


@pytest.mark.parametrize("codec", QUANTISED)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_stored_as_the_encoders_say(ops: OpTable, codec: str, bad: float) -> None:
    """As finite numbers, and in its own token only. One such number makes all of a normed key NaN."""
    shape = SHAPES[1]
    appends = Appends.random(shape, 3)
    keys, values = appends.vectors()
    healthy = empty(codec, shape, 1)
    store(healthy, LAYER, torch.arange(3), keys, values)
    appends.projected[1, 2 * shape.query_width + 3] = bad
    appends.projected[1, 2 * shape.query_width + shape.kv_width + 70] = bad
    keys[1, 0], values[1, 0, 70] = torch.nan, bad
    kv, expected = empty(codec, shape, 1), empty(codec, shape, 1)
    appends.by(ops, kv, torch.arange(3))
    store(expected, LAYER, torch.arange(3), keys, values)
    assert torch.equal(kv.pages, expected.pages)
    page = torch.tensor([0])
    for found, before in zip(*(load(each, LAYER, page, torch.float32) for each in (kv, healthy)), strict=True):
        assert found.isfinite().all()
        assert torch.equal(found[0, :, [0, 2]], before[0, :, [0, 2]])


@pytest.mark.parametrize("codec", ALL)
def test_zero_bytes_read_as_zeros(ops: OpTable, codec: str) -> None:
    cached = Cached.random(codec, SHAPES[0], [100], rows=1)
    cached.kv.pages.zero_()
    assert not cached.decode(ops.attention_decode, torch.float32).any()
