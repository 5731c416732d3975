"""Attention and its cache writes against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from kernels_numba import reference
from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionShape
from tests.kernels_numba.inputs import AttentionCase, Random, converted

SHAPES = [
    AttentionShape(heads=4, kv_heads=1, head_dim=256, rotary_dim=64),
    AttentionShape(heads=6, kv_heads=1, head_dim=32, rotary_dim=8),
    AttentionShape(heads=6, kv_heads=2, head_dim=20, rotary_dim=20),
    AttentionShape(heads=2, kv_heads=2, head_dim=9, rotary_dim=2),
]
PLAIN = ["fp32", "bf16"]


def shape_id(shape: AttentionShape) -> str:
    return f"{shape.heads}q{shape.kv_heads}kv x {shape.head_dim}, {shape.rotary_dim} turn"


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("kv_dtype", PLAIN)
@pytest.mark.parametrize("tokens", [1, 2, 70])
def test_append_kv(ops: OpTable, shape: AttentionShape, kv_dtype: str, tokens: int) -> None:
    random, case = Random(1), AttentionCase.random(shape, [100], tokens)
    angles = 10 * random.normal(tokens, shape.rotary_dim // 2)
    slots = random.permutation(case.kv.shape[0] * PAGE_TOKENS)[:tokens]
    expected_kv, kv = case.empty("fp32"), case.empty(kv_dtype)
    expected = reference.append_kv(case.projected, case.norms, angles.cos(), angles.sin(), expected_kv, 1, slots, shape)
    norms = converted(case.norms, torch.float32)
    query = ops.append_kv(
        case.projected.float(), norms, angles.cos().float(), angles.sin().float(), kv, 1, slots, shape
    )
    torch.testing.assert_close(query.double(), expected, atol=1e-5, rtol=1e-5)
    rounding = 2**-8 if kv_dtype == "bf16" else 1e-5
    torch.testing.assert_close(kv.plain.float(), expected_kv.plain, atol=1e-5, rtol=rounding)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("kv_dtype", PLAIN)
@pytest.mark.parametrize("contexts", [[1], [64, 65, 3], [200, 7, 128, 129]], ids=str)
def test_attention_decode(ops: OpTable, shape: AttentionShape, kv_dtype: str, contexts: list[int]) -> None:
    case = AttentionCase.random(shape, contexts, tokens=len(contexts))
    kv, lengths = case.paged(kv_dtype), torch.tensor(contexts)
    out = ops.attention_decode(case.query.float(), case.projected.float(), kv, 1, case.page_table, lengths, shape)
    expected = reference.attention_decode(case.query, case.projected, kv, 1, case.page_table, lengths, shape)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("kv_dtype", PLAIN)
@pytest.mark.parametrize(("tokens", "context"), [(2, 2), (17, 17), (40, 90), (64, 128), (3, 131)])
def test_attention_prefill(ops: OpTable, shape: AttentionShape, kv_dtype: str, tokens: int, context: int) -> None:
    case = AttentionCase.random(shape, [context], tokens)
    kv, pages = case.paged(kv_dtype), case.page_table[0]
    out = ops.attention_prefill(case.query.float(), case.projected.float(), kv, 0, pages, context, shape)
    expected = reference.attention_prefill(case.query, case.projected, kv, 0, pages, context, shape)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_attention_with_large_scores(ops: OpTable) -> None:
    """Softmax is taken relative to the largest score, page after page."""
    shape = SHAPES[1]
    case = AttentionCase.random(shape, [150], tokens=150)
    query, pages, kv = 100 * case.query, case.page_table[0], case.paged("fp32")
    out = ops.attention_prefill(query.float(), case.projected.float(), kv, 0, pages, 150, shape)
    expected = reference.attention_prefill(query, case.projected, kv, 0, pages, 150, shape)
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kv_dtype", PLAIN)
def test_a_page_table_may_be_a_view(ops: OpTable, kv_dtype: str) -> None:
    shape = SHAPES[1]
    case = AttentionCase.random(shape, [100, 90], tokens=2)
    wide = torch.cat([case.page_table, torch.zeros(2, 5, dtype=torch.int32)], 1)
    arguments = (case.query.float(), case.projected.float(), case.paged(kv_dtype), 0)
    lengths = torch.tensor([100, 90])
    out = ops.attention_decode(*arguments, wide[:, :2], lengths, shape)
    assert torch.equal(out, ops.attention_decode(*arguments, case.page_table, lengths, shape))
