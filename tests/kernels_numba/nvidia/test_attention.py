"""Attention and its cache writes as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.nvidia import attention_rows, attention_rows_combine
from kernels_numba.nvidia.attention_kernels import (
    COMBINE_WARPS,
    TILE_ROWS,
    TILE_WARPS,
    rows_combine_shared_bytes,
    rows_shared_bytes,
)
from kernels_numba.nvidia.attention_ops import row_splits
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


def rows_attended(case: AttentionCase, most: int) -> tuple[Tensor, Tensor]:
    """Of the rows of the case, the last of its first sequence; and what is right."""
    shape, context, tokens = case.shape, case.context_lengths[0], case.query.shape[0]
    kv, query, projected = case.paged("bf16"), case.query.bfloat16(), case.projected.bfloat16()
    pages = case.page_table
    group, exponent = shape.heads // shape.kv_heads, np.float32(shape.softmax_scale * math.log2(math.e))
    tiles, splits = -(-tokens * group // TILE_ROWS), -(-pages.shape[1] // most)
    place = (splits, shape.kv_heads, tiles * TILE_ROWS)
    partial, statistics = torch.full((*place, shape.head_dim), torch.nan), torch.full((*place, 2), torch.nan)
    out = torch.full((tokens, shape.query_width), torch.nan).bfloat16()
    gate = projected[:, shape.query_width :]
    launch(
        attention_rows.source(shape.head_dim),
        (tiles, shape.kv_heads, splits),
        32 * TILE_WARPS,
        [
            query.data_ptr(),
            kv.pages.data_ptr() + kv.layout.layer_bytes * LAYER,
            *pointers(pages, partial, statistics, gate, out),
            *(tokens * group, group, context - tokens, context, kv.layout.page_bytes, 2 * projected.stride(0), most),
            exponent,
        ],
        [query, kv.pages, pages, partial, statistics, projected, out],
        shared_bytes=rows_shared_bytes(shape.head_dim),
        waits=attention_rows.WAITS,
    )
    if splits > 1:
        assert out.isnan().all()
        launch(
            attention_rows_combine.source(shape.head_dim),
            (tokens * group, shape.kv_heads, 1),
            32 * COMBINE_WARPS,
            [
                *pointers(partial, statistics, gate, out),
                *(splits, tiles * TILE_ROWS, group, 2 * projected.stride(0), exponent),
            ],
            [partial, statistics, projected, out],
            shared_bytes=rows_combine_shared_bytes(shape.head_dim),
        )
    expected = reference.attention_prefill(query.double(), projected.double(), kv, LAYER, pages[0], context, shape)
    return out, expected


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tokens", "context", "most"),
    [(6, 1, 2, 2, 1), (3, 1, 30, 100, 2), (2, 2, 3, 150, 1), (1, 1, 70, 129, 3), (6, 1, 1, 64, 1)],
    ids=str,
)
def test_rows(heads: int, kv_heads: int, tokens: int, context: int, most: int) -> None:
    case = AttentionCase.random(AttentionShape(heads, kv_heads, 128, 16), [context], tokens)
    out, expected = rows_attended(case, most)
    assert distance(out, expected) < ROUNDING


def test_rows_of_the_large_heads() -> None:
    case = AttentionCase.random(AttentionShape(2, 1, 256, 16), [85], tokens=20)
    out, expected = rows_attended(case, most=1)
    assert distance(out, expected) < ROUNDING


@pytest.mark.parametrize(
    ("resident", "tiles", "pages", "expected"),
    [(264, 4, 4096, (66, 63)), (264, 768, 4096, (1, 4096)), (264, 24, 5, (5, 1)), (1, 2, 7, (1, 7))],
)
def test_row_splits(resident: int, tiles: int, pages: int, expected: tuple[int, int]) -> None:
    assert row_splits(resident, tiles, pages) == expected
