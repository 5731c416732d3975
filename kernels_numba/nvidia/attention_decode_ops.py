"""Decode attention by CUDA kernels; torch takes what they do not: other types, sizes and layouts.

One row of each sequence over bfloat16 goes through ``attention_split``, all else through ``attention_paged``; rows that
do not fit into the columns of its largest kernel take turns. ``attention_fp4``, a variant for sm_120a, rounds queries
over NVFP4 pages to NVFP4 as well; it never ran there, and serves if it passes its self-test.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.access import store
from kernels_numba.kv.codec import BF16, KV_CODECS, NVFP4
from kernels_numba.kv.encode import decode, encode
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_fp4_kernels
from kernels_numba.nvidia.attention_codec_fp4 import Fp4Plan
from kernels_numba.nvidia.attention_decode_kernels import (
    COLUMNS,
    COMBINE_SHARED_BYTES,
    KERNELS,
    PAGED,
    paged_name,
    served_plans,
    split_shared_bytes,
)
from kernels_numba.nvidia.attention_decode_plan import PAGED_HEAD_DIM, SCORE_SCALES, PagedPlan
from kernels_numba.nvidia.attention_fp4_kernels import fp4_name, plans_with_fp4
from kernels_numba.nvidia.attention_kernels import HEAD_DIMS, PAGE_TOKENS
from kernels_numba.nvidia.attention_launch import PROGRAMMATIC, ROUNDING, integers, resident_blocks
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, Variant, assert_close
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops import attention

MOST_SEQUENCES = 4096
MOST_ROWS = 16
"""Of a sequence."""


def attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    return _attention_decode(served_plans, query, projected, kv, layer, page_table, context_lengths, shape)


def attention_decode_fp4(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """The same with queries rounded to NVFP4 where keys are NVFP4."""
    return _attention_decode(plans_with_fp4, query, projected, kv, layer, page_table, context_lengths, shape)


def _attention_decode(
    plans_of: Callable[[str, str], tuple[PagedPlan, ...]],
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    sequences = len(context_lengths)
    rows = query.shape[0] // max(1, sequences)
    fits = _fits(query, projected, kv, page_table, context_lengths)
    plans = _plans(plans_of, kv, shape, rows, device_of(query.device).arch) if fits else ()
    if not plans:
        return attention.attention_decode(query, projected, kv, layer, page_table, context_lengths, shape)
    out = torch.empty((query.shape[0], shape.query_width), dtype=query.dtype, device=query.device)
    if not query.shape[0]:
        return out
    device = device_of(query.device)
    group, scale = shape.heads // shape.kv_heads, shape.softmax_scale * math.log2(math.e)
    most = COLUMNS * plans[-1].tiles // group
    for begin in range(0, rows, most):
        tokens = min(most, rows - begin)
        plan = next(plan for plan in plans if tokens * group <= COLUMNS * plan.tiles)
        name, shared_bytes, score_scale = _kernel_of(plan, shape.head_dim)
        resident = resident_blocks(device.index, name, shared_bytes)
        slots = split_slots(resident // shape.kv_heads, sequences)
        blocks = slots * shape.kv_heads * plan.tiles
        # partial outputs, then their maxima and sums
        partial_bytes = 4 * COLUMNS * shape.head_dim * blocks
        scratch = torch.empty(partial_bytes + 8 * COLUMNS * blocks, dtype=torch.uint8, device=query.device)
        partial, statistics = scratch.data_ptr(), scratch.data_ptr() + partial_bytes
        turn = (tokens, rows, rows - begin - tokens)
        exponent = scale * 2.0**score_scale
        device.kernel(name)(
            (slots, shape.kv_heads, 1),
            query.data_ptr() + begin * 2 * shape.query_width,
            kv.pages.data_ptr() + kv.layout.layer_bytes * layer,
            page_table.data_ptr(),
            context_lengths.data_ptr(),
            partial,
            statistics,
            sequences,
            page_table.stride(0),
            kv.layout.page_bytes,
            group,
            *(() if plan is _SPLIT else turn),
            exponent,
            shared_bytes=shared_bytes,
            programmatic=PROGRAMMATIC,
        )
        device.kernel(f"attention_combine_{shape.head_dim}")(
            (shape.head_dim // 16, shape.kv_heads, sequences * plan.tiles),
            partial,
            statistics,
            context_lengths.data_ptr(),
            projected.data_ptr() + begin * 2 * projected.stride(0) + 2 * shape.query_width,
            out.data_ptr() + begin * 2 * shape.query_width,
            sequences,
            2 * projected.stride(0),
            group,
            *turn,
            slots,
            plan.step_pages,
            plan.tiles,
            exponent,
            shared_bytes=COMBINE_SHARED_BYTES,
            programmatic=PROGRAMMATIC,
        )
    return out


def split_slots(resident: int, sequences: int) -> int:
    """Blocks per kv head: what fills the device once, or a multiple of that which has two for every sequence.

    Independent of the contexts, which only the kernel knows.
    """
    resident = max(resident, 1)
    return resident * -(-2 * sequences // resident)


_SPLIT = PagedPlan("bf16", 1, 1, 0)
"""Stands for ``attention_split``: one tile, one page a step."""


def _plans(
    plans_of: Callable[[str, str], tuple[PagedPlan, ...]], kv: PagedKv, shape: AttentionShape, rows: int, arch: str
) -> tuple[PagedPlan, ...]:
    """The kernels that serve these rows, by number of columns; empty if torch does."""
    codec = kv.layout.codec
    if shape.heads % shape.kv_heads or not 1 <= rows <= MOST_ROWS:
        return ()
    group = shape.heads // shape.kv_heads
    if codec.key == BF16 and rows == 1 and shape.head_dim in HEAD_DIMS and group <= COLUMNS:
        return (_SPLIT,)
    plans = plans_of(codec.name, arch) if shape.head_dim == PAGED_HEAD_DIM else ()
    return plans if plans and group <= COLUMNS * plans[-1].tiles else ()


def _kernel_of(plan: PagedPlan, head_dim: int) -> tuple[str, int, int]:
    """Its name, its shared memory and by which power of two its scores are too small."""
    if plan is _SPLIT:
        return f"attention_split_{head_dim}", split_shared_bytes(head_dim), 0
    if isinstance(plan, Fp4Plan):
        return fp4_name(plan), plan.shared_bytes, 0
    return paged_name(plan), plan.shared_bytes, SCORE_SCALES[plan.codec]


def _fits(query: Tensor, projected: Tensor, kv: PagedKv, page_table: Tensor, context_lengths: Tensor) -> bool:
    return (
        query.dtype == projected.dtype == torch.bfloat16
        and query.is_contiguous()
        and query.shape[0] % max(1, len(context_lengths)) == 0
        and projected.stride(1) == 1
        and kv.pages.is_contiguous()
        and integers(page_table, torch.int32)
        and integers(context_lengths, torch.int64)
        and len(context_lengths) <= MOST_SEQUENCES
    )


def _check(device: torch.device) -> None:
    """Every kernel against the reference in float64."""
    for head_dim in HEAD_DIMS:
        _check_rows(device, "bf16", AttentionShape(heads=6, kv_heads=2, head_dim=head_dim, rotary_dim=16), 1)
    shape = AttentionShape(heads=6, kv_heads=1, head_dim=PAGED_HEAD_DIM, rotary_dim=64)
    for codec in dict.fromkeys(plan.codec for plan in PAGED):
        for plan in served_plans(codec, device_of(device).arch):
            _check_rows(device, codec, shape, COLUMNS * plan.tiles // 6)


def _check_fp4(device: torch.device) -> None:
    """Every kernel of the variant against the reference in float64 with queries rounded to NVFP4."""
    shape = AttentionShape(heads=6, kv_heads=1, head_dim=PAGED_HEAD_DIM, rotary_dim=64)
    for plan in attention_fp4_kernels.PLANS:
        _check_rows(device, "nvfp4", shape, COLUMNS * plan.tiles // 6, fp4=True)


def _check_rows(device: torch.device, codec: str, shape: AttentionShape, rows: int, fp4: bool = False) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    lengths, table = torch.tensor([rows, 331, 64]), torch.tensor([[3] * 6, [8, 2, 5, 1, 7, 4], [6] * 6]).int()
    kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], 2, shape.kv_heads, shape.head_dim), 9)
    size = (9 * PAGE_TOKENS, shape.kv_heads, shape.head_dim)
    store(kv, 1, torch.arange(size[0]), normal(*size), normal(*size))
    query = normal(3 * rows, shape.heads, shape.head_dim).bfloat16()
    projected = normal(3 * rows, shape.projected_width).bfloat16()
    there = PagedKv(kv.pages.to(device), kv.layout)
    op = attention_decode_fp4 if fp4 else attention_decode
    out = op(query.to(device), projected.to(device), there, 1, table.to(device), lengths.to(device), shape)
    seen = decode(NVFP4, *encode(NVFP4, query)) if fp4 else query
    expected = reference.attention_decode(seen.double(), projected.double(), kv, 1, table, lengths, shape)
    name = "attention_fp4" if fp4 else "attention_decode"
    assert_close(f"{name} of {rows} rows over {codec}", out, expected, ROUNDING)


GROUP = OpGroup(
    "attention_decode",
    tuple(spec.name for spec in KERNELS),
    {"attention_decode": attention_decode},
    _check,
    variants=(
        Variant(
            "attention_fp4",
            attention_fp4_kernels.ARCHS,
            tuple(spec.name for spec in attention_fp4_kernels.KERNELS),
            {"attention_decode": attention_decode_fp4},
            _check_fp4,
        ),
    ),
)
