"""Prefill attention: its kernels instruction by instruction on the CPU, the library's part in float64."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_prefill_ops as prefill_ops
from kernels_numba.nvidia.attention_kernels import EXPANDED, MERGED
from kernels_numba.shapes import AttentionShape
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.nvidia.emulator import EmulatedDevice

LAYER = 1
ROUNDING = 4e-3
"""Of a result in bfloat16 that is merged from such, by norm."""
_Part = tuple[Tensor, Tensor]


def random_kv(codec: str, kv_heads: int, pages: Tensor, context: int, numbers: Random, *, spread: float = 1) -> PagedKv:
    """Positions of magnitudes that differ by ``spread`` on ``pages``; all other bytes are 0xFF."""
    kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], 2, kv_heads, 256), int(pages.max()) + 2)
    kv.pages.fill_(0xFF)
    positions = torch.arange(context)
    slots = PAGE_TOKENS * pages[positions // PAGE_TOKENS].long() + positions % PAGE_TOKENS
    new = numbers.normal(context, 2, kv_heads, 256) * (spread * numbers.normal(context, 2, kv_heads, 1)).exp()
    store(kv, LAYER, slots, new[:, 0], new[:, 1])
    return kv


class Library:
    """Attention as the library has it, by the formula in float64; remembers what it was asked for."""

    def __init__(self) -> None:
        self.planned: list[tuple[int, int]] = []
        self.others: list[tuple[int, int]] = []

    def flash(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> _Part:
        self.others.append((query.shape[2], key.shape[2]))
        return self._attended(query, key, value, is_causal, scale)

    def cudnn(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> _Part:
        self.planned.append((query.shape[2], key.shape[2]))
        return self._attended(query, key, value, False, scale)

    @staticmethod
    def _attended(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> _Part:
        group, rows, keys = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
        key, value = (x[0].double().repeat_interleave(group, 0) for x in (key, value))
        scores = query[0].double() @ key.transpose(1, 2) * scale
        if is_causal:
            scores = scores.masked_fill(torch.arange(keys) > (keys - rows + torch.arange(rows))[:, None], -torch.inf)
        out = (scores.softmax(-1) @ value).transpose(0, 1).bfloat16().contiguous()
        return out, scores.logsumexp(-1).float().contiguous()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Kernels run in the emulator and see what they are given; lengths are short; plans are to be had."""
    device, library, merge = EmulatedDevice(random.Random(0)), Library(), prefill_ops._merge

    def merge_tracked(parts: list[_Part], gate: Tensor | None, out: Tensor, rows: int, shape: AttentionShape) -> _Part:
        device.tensors += [tensor for part in parts for tensor in part] + ([] if gate is None else [gate])
        return merge(parts, gate, out, rows, shape)

    def expanded(kv: PagedKv, layer: int, pages: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
        device.tensors += [kv.pages, pages]
        return expand(kv, layer, pages, *arguments)  # type: ignore[arg-type]

    expand = prefill_ops._expanded
    for name, value in {
        "device_of": lambda _: device,
        "_flash": library.flash,
        "_cudnn": library.cudnn,
        "_merge": merge_tracked,
        "_expanded": expanded,
        "cudnn_serves": lambda *_: True,
        "DECODED_ROWS": 0,
        "STRETCH_TOKENS": 128,
        "SHORTEST_TOKENS": 32,
        "BLOCK_ROWS": 32,
        "PADDED_ROWS": 8,
        "wave_rows": lambda *_: 12,
    }.items():
        monkeypatch.setattr(prefill_ops, name, value)
    monkeypatch.setattr(torch, "empty", device.empty)
    return library


def attended(
    codec: str, shape: AttentionShape, tokens: int, context: int, *, spread: float = 1
) -> tuple[Tensor, Tensor]:
    """Found, and by the reference in float64."""
    numbers = Random(tokens)
    pages = numbers.permutation(-(-context // PAGE_TOKENS) + 2)[: -(-context // PAGE_TOKENS)].int()
    kv = random_kv(codec, shape.kv_heads, pages, context, numbers, spread=spread)
    query = numbers.normal(tokens, shape.heads, 256).bfloat16()
    projected = numbers.normal(tokens, shape.projected_width).bfloat16()
    found = prefill_ops.attention_prefill(query, projected, kv, LAYER, pages, context, shape)
    expected = reference.attention_prefill(query.double(), projected.double(), kv, LAYER, pages, context, shape)
    return found, expected


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("codec", EXPANDED)
def test_rows_are_what_is_stored(library: Library, codec: str) -> None:
    """To the bit where bfloat16 holds it, else rounded once; from the middle of a page on, and not beyond the end."""
    shape, pages, begin, count = AttentionShape(2, 2, 256, 64), torch.tensor([3, 1]).int(), 37, 64
    kv = random_kv(codec, 2, pages, begin + count, Random(1))
    workspace = torch.empty(2 * 2 * (count + 1) * 256, dtype=torch.bfloat16)
    found = prefill_ops._expanded(kv, LAYER, pages, begin, count, shape, workspace)
    for rows, stored in zip(found, load(kv, LAYER, pages.long(), torch.float32), strict=True):
        expected = stored.transpose(0, 1).flatten(1, 2)[:, begin : begin + count].bfloat16()
        assert torch.equal(rows[0], expected)
    assert workspace[2 * 2 * count * 256 :].isnan().all()


@pytest.mark.parametrize(
    ("tokens", "context", "planned", "others"),
    [
        (1, 1, [], [(1, 1)]),
        (7, 300, [], [(7, 128), (7, 128), (7, 44)]),
        (8, 8, [], [(8, 8)]),
        (9, 250, [(12, 128), (12, 64), (12, 32)], [(9, 26)]),
        (26, 257, [(32, 128), (32, 64), (32, 32)], [(26, 33)]),
        (34, 161, [(32, 64), (32, 32)], [(32, 63), (2, 128), (2, 33)]),
        (20, 60, [(24, 32)], [(20, 28)]),
    ],
    ids=str,
)
def test_stretches_of_blocks(
    library: Library, tokens: int, context: int, planned: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    """Long blocks go to cuDNN, with queries and stretches of a few lengths, short ones and the ends elsewhere."""
    found, expected = attended("bf16", AttentionShape(2, 1, 256, 64), tokens, context)
    assert distance(found, expected) < ROUNDING
    assert library.planned == planned
    assert library.others == others


def test_more_stretches_than_one_launch_merges(library: Library) -> None:
    context = 128 * (MERGED + 2) + 10
    found, expected = attended("bf16", AttentionShape(1, 1, 256, 64), 3, context, spread=0)
    assert distance(found, expected) < ROUNDING
    assert len(library.others) == MERGED + 3


def test_one_large_score_takes_all(library: Library) -> None:
    """Whichever stretch it is in."""
    shape, context = AttentionShape(1, 1, 256, 64), 300
    numbers = Random(0)
    pages = torch.arange(7).int()
    for place in (3, 298):
        kv = random_kv("bf16", 1, pages, context, numbers)
        query, projected = numbers.normal(2, 1, 256).bfloat16(), numbers.normal(2, shape.projected_width).bfloat16()
        kv.plain[place // PAGE_TOKENS, LAYER, 0, 0, place % PAGE_TOKENS] = 40 * query[0, 0]
        found = prefill_ops.attention_prefill(query, projected, kv, LAYER, pages, context, shape)
        expected = reference.attention_prefill(query.double(), projected.double(), kv, LAYER, pages, context, shape)
        assert distance(found, expected) < ROUNDING


@pytest.mark.parametrize(("tokens", "decodes"), [(0, False), (1, True), (16, True), (17, False)])
def test_a_few_rows_go_the_way_of_decoding(monkeypatch: pytest.MonkeyPatch, tokens: int, decodes: bool) -> None:
    shape, asked = AttentionShape(1, 1, 256, 64), []

    def decode(query: Tensor, *arguments: Tensor) -> Tensor:
        asked.append(arguments)
        return query.flatten(1)

    monkeypatch.setattr(prefill_ops, "attention_decode", decode)
    monkeypatch.setattr(prefill_ops, "_attend", lambda *_: None)
    kv = PagedKv.zeros(KvLayout(KV_CODECS["bf16"], 1, 1, 256), 3)
    query, projected = torch.zeros(tokens, 1, 256).bfloat16(), torch.zeros(tokens, shape.projected_width).bfloat16()
    pages = torch.tensor([2, 1]).int()
    out = prefill_ops.attention_prefill(query, projected, kv, 0, pages, 100, shape)
    assert out.shape == (tokens, 256)
    assert bool(asked) is decodes
    if decodes:
        _, _, _, table, lengths, _ = asked[0]
        assert table.tolist() == [[2, 1]]
        assert lengths.tolist() == [100]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (255, [(0, 255, 0)]),
        (256, [(0, 256, 640)]),
        (640, [(0, 640, 640)]),
        (641, [(0, 641, 1280)]),
        (1280, [(0, 1280, 1280)]),
        (1281, [(0, 1281, 2048)]),
        (4396, [(0, 2048, 2048), (2048, 4096, 2048), (4096, 4396, 640)]),
        (2100, [(0, 2048, 2048), (2048, 2100, 0)]),
    ],
    ids=str,
)
def test_blocks(tokens: int, expected: list[tuple[int, int, int]]) -> None:
    assert prefill_ops.blocks(tokens, wave=640) == expected


@pytest.mark.parametrize(("heads", "rows"), [(24, 640), (16, 1024), (4, 2048), (200, 128)])
def test_a_wave_fills_the_device(monkeypatch: pytest.MonkeyPatch, heads: int, rows: int) -> None:
    monkeypatch.setattr(prefill_ops, "device_of", lambda _: EmulatedDevice(random.Random(0)))
    assert prefill_ops.wave_rows(torch.device("cpu"), AttentionShape(heads, heads, 256, 64)) == rows
