"""Writes to the cache as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
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


CODECS = ["fp8", "int8", "nvfp4", "k8v4"]
ROTATING = AttentionShape(heads=2, kv_heads=2, head_dim=256, rotary_dim=64)


def exact_rows(tokens: int, numbers: Random) -> tuple[Tensor, AttentionNorms]:
    """Projections whose keys are of magnitude one, and norms that make them any numbers, to be rounded once."""
    projected = numbers.normal(tokens, ROTATING.projected_width).bfloat16()
    keys = projected[:, 2 * ROTATING.query_width :][:, : ROTATING.kv_width]
    keys.copy_(torch.where(keys < 0, -1, 1))
    weight = numbers.normal(ROTATING.head_dim).float()
    return projected, AttentionNorms(torch.ones(ROTATING.head_dim), weight, 0.0)


def rotated(x: Tensor) -> Tensor:
    """Times the Hadamard matrix, in float64."""
    bits = torch.arange(256)
    signs = torch.tensor([[(-1) ** (int(i) & int(j)).bit_count() for j in bits] for i in bits]).double()
    return x.double() @ signs / 16


@pytest.mark.parametrize(
    ("codec", "cancels"), [*((codec, False) for codec in CODECS), ("nvfp4", True)], ids=[*CODECS, "nvfp4, cancelling"]
)
def test_the_bytes_are_those_of_the_plain_encoder(codec: str, cancels: bool) -> None:
    """And no others change: zeros, tiny groups, large ones, values that are no numbers; pages in any order.

    ``cancels``: two numbers of a key cancel in half of its dimensions and leave what the order of additions rounded.
    """
    numbers = Random(5)
    tokens = 9
    projected, norms = exact_rows(tokens, numbers)
    keys, values = projected[:, 2 * ROTATING.query_width :].view(tokens, 2, 2, 256).unbind(1)
    values[1] *= 2e-3
    values[2, 0, 16:48] = 0
    values[2, 0, 32:64] = -0.0
    values[3, 1] = torch.tensor(-3e38)
    values[4, 0, 5], values[4, 0, 77], values[4, 1, 130] = torch.nan, torch.inf, -torch.inf
    values[5] *= 1e5
    values[6, 0, :32] = torch.tensor(
        [6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -6, -5, -3.5, -2.5, -1.75, -1.25, -0.75, -0.25] * 2
    )
    values[7, :, 16:32] = 0.00586
    norms.key[:] *= 2.0 ** torch.arange(-16, 0)[:, None].repeat(1, 16).view(-1)
    if cancels:
        norms.key[[0, 128]] = 2.0**20
    keys[8, 0, 3] = torch.nan
    kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], 2, 2, 256), 4)
    kv.pages.fill_(0xA5)
    slots = torch.tensor([130, 63, 64, 77, 0, 255, 191, 15, 16])
    expected = PagedKv(kv.pages.clone(), kv.layout)
    flat = torch.ones(tokens, 32), torch.zeros(tokens, 32)
    query = appended(projected, norms, *flat, kv, slots, ROTATING)
    store(expected, LAYER, slots, keys * norms.key.bfloat16(), values)
    assert (kv.runs != expected.runs).nonzero().tolist() == []
    plain = projected[:, : ROTATING.query_width].view(tokens, 2, 256).double()
    plain = plain * torch.rsqrt(plain.square().mean(-1, keepdim=True))
    torch.testing.assert_close(query.double(), rotated(plain), atol=1e-5, rtol=2**-8)


@pytest.mark.parametrize("codec", CODECS)
def test_keys_that_the_norm_rounds_are_near(codec: str) -> None:
    """By no more than an ulp of bfloat16 lies between the kernel's keys and exact ones, before they are quantised."""
    numbers = Random(6)
    case = AttentionCase.random(ROTATING, [100], tokens=4)
    norms, projected = converted(case.norms, torch.float32), case.projected.bfloat16()
    angles = 10 * numbers.normal(4, 32)
    cos, sin = angles.cos().float(), angles.sin().float()
    kv, expected_kv, slots = case.empty(codec), case.empty("fp32"), torch.tensor([1, 70, 3, 127])
    query = appended(projected, norms, cos, sin, kv, slots, ROTATING)
    expected = reference.append_kv(
        projected.double(),
        converted(norms, torch.float64),
        cos.double(),
        sin.double(),
        expected_kv,
        LAYER,
        slots,
        ROTATING,
    )
    torch.testing.assert_close(query.double(), rotated(expected), atol=1e-5, rtol=2**-8)
    found = load(kv, LAYER, slots // PAGE_TOKENS, torch.float64)
    exact = expected_kv.plain[slots // PAGE_TOKENS, LAYER]
    rows = torch.arange(4), slice(None), slots % PAGE_TOKENS
    errors = {"fp8": 0.028, "int8": 0.0085, "nvfp4": 0.1}
    for part, form in enumerate((kv.layout.codec.key, kv.layout.codec.value)):
        right = exact[:, :, part][rows].double()
        right = rotated(right) if part == 0 else right
        difference = float((found[part][rows] - right).norm() / right.norm())
        assert 0.5 * errors[form.name] < difference < errors[form.name]
