"""Writes to the cache as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import append
from kernels_numba.nvidia.append_kernels import APPEND_WARPS, append_arguments
from kernels_numba.shapes import AttentionNorms, AttentionShape
from tests.kernels_numba.inputs import AttentionCase, Random, converted
from tests.kernels_numba.nvidia.emulator import launch

LAYER = 1


def appended(
    projected: Tensor,
    norms: AttentionNorms,
    cos: Tensor,
    sin: Tensor,
    kv: PagedKv,
    slots: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """The queries."""
    tokens, half_rotary = cos.shape
    query = torch.full((tokens, shape.heads, shape.head_dim), torch.nan).bfloat16()
    tensors = [projected, norms.query, norms.key, cos, sin, kv.pages, slots, query]
    launch(
        append.source(*append_arguments(kv.layout.codec.name, shape.head_dim)),
        (tokens, -(-(shape.heads + 2 * shape.kv_heads) // APPEND_WARPS), 1),
        32 * APPEND_WARPS,
        [
            *(tensor.data_ptr() for tensor in tensors),
            *(2 * projected.stride(0), shape.heads, shape.kv_heads, half_rotary),
            *(kv.layout.page_bytes, kv.layout.layer_bytes * LAYER, np.float32(norms.eps)),
        ],
        tensors,
    )
    return query


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "tokens"),
    [(6, 2, 256, 64, 3), (5, 1, 128, 32, 2), (4, 2, 64, 64, 2), (2, 1, 256, 48, 1)],
    ids=str,
)
def test_plain(heads: int, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int) -> None:
    shape = AttentionShape(heads, kv_heads, head_dim, rotary_dim)
    case, numbers = AttentionCase.random(shape, [100], tokens), Random(3)
    angles = 10 * numbers.normal(tokens, rotary_dim // 2)
    cos, sin = angles.cos().float(), angles.sin().float()
    norms = converted(case.norms, torch.float32)
    kv, projected = case.empty("bf16"), case.projected.bfloat16()
    projected[0] *= 1e-3  # so small that epsilon counts
    slots = numbers.permutation(kv.pages.shape[0] * PAGE_TOKENS)[:tokens]
    query, expected_kv = appended(projected, norms, cos, sin, kv, slots, shape), case.empty("fp32")
    expected = reference.append_kv(
        projected.double(),
        converted(norms, torch.float64),
        cos.double(),
        sin.double(),
        expected_kv,
        LAYER,
        slots,
        shape,
    )
    torch.testing.assert_close(query.double(), expected, atol=1e-5, rtol=2**-8)
    torch.testing.assert_close(kv.plain.float(), expected_kv.plain, atol=1e-5, rtol=2**-8)
