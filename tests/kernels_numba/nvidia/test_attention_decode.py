"""Decode attention as its kernels compute it, instruction by instruction on the CPU."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.nvidia import attention_combine, attention_split
from kernels_numba.nvidia.attention_decode_kernels import (
    COLUMNS,
    COMBINE_SHARED_BYTES,
    SPLIT_WARPS,
    split_shared_bytes,
)
from kernels_numba.nvidia.attention_decode_ops import split_slots
from kernels_numba.nvidia.attention_kernels import COMBINE_WARPS, PAGE_TOKENS
from kernels_numba.nvidia.attention_shares import shares
from kernels_numba.shapes import AttentionShape
from tests.kernels_numba.inputs import AttentionCase
from tests.kernels_numba.nvidia.emulator import launch

LAYER = 1
ROUNDING = 2.5e-3
"""Of a result in bfloat16 and of probabilities in it, by norm."""


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@dataclass
class Decode:
    """Both kernels on one case in bfloat16; what lies behind the contexts is NaN."""

    case: AttentionCase
    slots: int

    def __post_init__(self) -> None:
        case, shape = self.case, self.case.shape
        self.kv, self.query, self.projected = case.paged("bf16"), case.query.bfloat16(), case.projected.bfloat16()
        blocks = (self.slots, shape.kv_heads)
        self.partial = torch.full((*blocks, shape.head_dim // 16, 32, 4), torch.nan)
        self.statistics = torch.full((*blocks, COLUMNS, 2), torch.nan)
        self.lengths = torch.tensor(case.context_lengths)
        self.out = torch.full((len(case.context_lengths), shape.query_width), torch.nan).bfloat16()

    def run(self, late: bool = True) -> Tensor:
        """``late``: asynchronous copies arrive at the last moment, not at once."""
        shape, table = self.case.shape, self.case.page_table
        group, exponent = shape.heads // shape.kv_heads, np.float32(shape.softmax_scale * math.log2(math.e))
        results = [self.partial, self.statistics]
        launch(
            attention_split.source(shape.head_dim),
            (self.slots, shape.kv_heads, 1),
            32 * SPLIT_WARPS,
            [
                self.query.data_ptr(),
                self.kv.pages.data_ptr() + self.kv.layout.layer_bytes * LAYER,
                *pointers(table, self.lengths, *results),
                *(len(self.lengths), table.stride(0), self.kv.layout.page_bytes, group, exponent),
            ],
            [self.query, self.kv.pages, table, self.lengths, *results],
            shared_bytes=split_shared_bytes(shape.head_dim),
            order=lambda blocks: random.Random(0).sample(blocks, len(blocks)),
            **({"waits": attention_split.WAITS} if late else {"names": list(attention_split.WAITS)}),
        )
        launch(
            attention_combine.source(shape.head_dim),
            (shape.head_dim // 16, shape.kv_heads, len(self.lengths)),
            32 * COMBINE_WARPS,
            [
                *pointers(*results, self.lengths, self.projected[:, shape.query_width :], self.out),
                *(len(self.lengths), 2 * self.projected.stride(0), group, 1, 1, 0, self.slots, 1, 1, exponent),
            ],
            [*results, self.lengths, self.projected, self.out],
            shared_bytes=COMBINE_SHARED_BYTES,
        )
        return self.out

    def expected(self) -> Tensor:
        case = self.case
        return reference.attention_decode(
            self.query.double(),
            self.projected.double(),
            self.kv,
            LAYER,
            case.page_table,
            self.lengths,
            case.shape,
        )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "contexts", "slots"),
    [
        (6, 1, 64, [200], 2),
        (8, 2, 128, [1, 130, 64], 4),
        (3, 1, 256, [15, 321], 4),
        (1, 1, 64, [64, 65, 63, 17], 9),
        (2, 1, 64, [5 * PAGE_TOKENS], 1),
    ],
    ids=str,
)
def test_decode(heads: int, kv_heads: int, head_dim: int, contexts: list[int], slots: int) -> None:
    shape = AttentionShape(heads, kv_heads, head_dim, rotary_dim=16)
    decode = Decode(AttentionCase.random(shape, contexts, tokens=len(contexts)), slots)
    assert distance(decode.run(), decode.expected()) < ROUNDING


def test_copies_may_arrive_at_once() -> None:
    """None lands where something is still read."""
    shape = AttentionShape(2, 1, 64, 16)
    decode = Decode(AttentionCase.random(shape, [300], tokens=1), slots=1)
    assert distance(decode.run(late=False), decode.expected()) < ROUNDING


def test_a_new_maximum_replaces_the_sums() -> None:
    """Every page of a split holds larger scores than the one before, and the last split the largest."""
    shape = AttentionShape(2, 1, 64, 16)
    case = AttentionCase.random(shape, [400], tokens=1)
    for page, physical in enumerate(case.page_table[0].tolist()):
        case.kv[physical, LAYER, :, 0] *= 4 * page + 1
    decode = Decode(case, slots=2)
    assert distance(decode.run(), decode.expected()) < ROUNDING


def test_an_empty_sequence_yields_zeros() -> None:
    shape = AttentionShape(2, 1, 64, 16)
    case = AttentionCase.random(shape, [70, 1, 5], tokens=3)
    decode = Decode(case, slots=6)
    decode.lengths[1] = 0
    out = decode.run()
    decode.lengths[1] = 1
    assert not out[1].any()
    assert distance(out[[0, 2]], decode.expected()[[0, 2]]) < ROUNDING


def test_more_splits_than_a_warp_has_in_flight() -> None:
    shape = AttentionShape(2, 1, 64, 16)
    pages = 4 * COMBINE_WARPS + 3
    decode = Decode(AttentionCase.random(shape, [PAGE_TOKENS * pages - 10], tokens=1), slots=pages)
    assert distance(decode.run(), decode.expected()) < ROUNDING
    assert not decode.statistics.isnan().any()


@pytest.mark.parametrize(
    ("contexts", "slots"),
    [([64] * 6, 12), ([640, 64, 64], 6), ([640, 640, 640], 10), ([256, 256, 64], 6), ([9 * 64, 64], 40)],
    ids=str,
)
def test_slots_are_shared_by_length(contexts: list[int], slots: int) -> None:
    """Slots in use are those of the formula, in order; every sequence has one, and none has more than pages."""
    shape = AttentionShape(1, 1, 64, 16)
    decode = Decode(AttentionCase.random(shape, contexts, tokens=len(contexts)), slots)
    assert distance(decode.run(), decode.expected()) < ROUNDING
    pages = [-(-context // PAGE_TOKENS) for context in contexts]
    counts = shares(pages, slots, step_pages=1)
    assert all(1 <= count <= own for count, own in zip(counts, pages, strict=True))
    used = ~decode.statistics[:, 0, 0, 0].isnan()
    assert used.tolist() == [slot < sum(counts) for slot in range(slots)]


@pytest.mark.parametrize(
    ("pages", "slots", "step_pages", "expected"),
    [
        ([1024], 99, 1, [99]),
        ([10, 1, 1], 6, 1, [3, 1, 1]),
        ([10, 10, 10], 10, 1, [3, 3, 3]),
        ([9, 1], 40, 1, [9, 1]),
        ([9, 1], 40, 2, [5, 1]),
        ([5, 0, 7], 8, 1, [3, 0, 3]),
    ],
)
def test_shares(pages: list[int], slots: int, step_pages: int, expected: list[int]) -> None:
    assert shares(pages, slots, step_pages) == expected
    assert sum(expected) <= slots


@pytest.mark.parametrize(
    ("resident", "sequences", "slots"), [(66, 1, 66), (66, 33, 66), (66, 34, 132), (0, 1, 2), (5, 7, 15)]
)
def test_slots_fill_the_device_and_leave_two_for_each(resident: int, sequences: int, slots: int) -> None:
    assert split_slots(resident, sequences) == slots
