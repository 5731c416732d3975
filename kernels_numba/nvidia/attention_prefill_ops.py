"""Attention of many new tokens of one sequence over its paged cache, of any codec.

A kernel brings a stretch of the context out of the cache as bfloat16 rows, torch's fused attention takes the queries
over it, and another kernel merges the stretches by their log-sum-exps (as in FlashAttention-2, arXiv 2307.08691) and
applies the gate. What the new tokens see of each other comes out of the cache as well, in the last stretch.

cuDNN's attention, where the device has it for this size of head, is twice as fast as FlashAttention-2. It makes a plan
per shape, which takes 40 ms, so it only gets blocks of three sizes, padded to them, and stretches of a few lengths; the
rest is FlashAttention's. Memory: a stretch of keys and values, MERGED outputs of a block. A few rows go the way of
decoding, which reads the cache as it is.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from itertools import pairwise, product

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.access import store
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_decode_ops import MOST_ROWS, attention_decode
from kernels_numba.nvidia.attention_kernels import (
    EXPANDED,
    KERNELS,
    MERGE_WARPS,
    MERGED,
    PAGE_TOKENS,
    PREFILL_HEAD_DIM,
    expand_name,
)
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops import attention

DECODED_ROWS = MOST_ROWS
STRETCH_TOKENS = 32768
"""The longest stretch; a little more is brought out at once: 128 MiB of 4 kv heads."""
SHORTEST_TOKENS = 1024
"""The shortest stretch for cuDNN."""
BLOCK_ROWS = 2048
"""Queries that are taken over the context at once."""
TILE_ROWS = 128
"""Queries that one multiprocessor has at once in cuDNN."""
PADDED_ROWS = 256
"""From so many rows on a block is padded for cuDNN: with fewer FlashAttention has less to do."""
ROUNDING = 6e-3
"""Of results in bfloat16, and of what was merged from such, by norm; 2e-3 is usual."""

_log = logging.getLogger(__name__)


def attention_prefill(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    pages: Tensor,
    context_length: int,
    shape: AttentionShape,
) -> Tensor:
    if (
        kv.layout.codec.name not in EXPANDED
        or shape.head_dim != PREFILL_HEAD_DIM
        or query.dtype != torch.bfloat16
        or not query.is_contiguous()
        or projected.dtype != torch.bfloat16
        or projected.stride(1) != 1
        or projected.stride(0) % 8
        or projected.data_ptr() % 16
        or not kv.pages.is_contiguous()
        or pages.dtype != torch.int32
        or pages.device != query.device
        or pages.stride(0) != 1
    ):
        return attention.attention_prefill(query, projected, kv, layer, pages, context_length, shape)
    tokens = query.shape[0]
    if 0 < tokens <= DECODED_ROWS:
        length = torch.full((1,), context_length, dtype=torch.int64, device=query.device)
        return attention_decode(query, projected, kv, layer, pages[None], length, shape)
    out = torch.empty((tokens, shape.query_width), dtype=query.dtype, device=query.device)
    has_plans = tokens >= PADDED_ROWS and cudnn_serves(query.device, shape)
    for begin, end, padded in blocks(tokens, wave_rows(query.device, shape) if has_plans else BLOCK_ROWS):
        rows, seen = slice(begin, end), context_length - tokens + end
        _attend(query[rows], projected[rows], kv, layer, pages, seen, shape, padded if has_plans else 0, out[rows])
    return out


def blocks(tokens: int, wave: int) -> list[tuple[int, int, int]]:
    """Rows of each block, from and to, and how many they are padded to, 0 for none.

    Blocks have BLOCK_ROWS; the last is padded to that, or to one or two of ``wave``, if it is not too short for it.
    """
    found = []
    for begin in range(0, tokens, BLOCK_ROWS):
        rows = min(tokens - begin, BLOCK_ROWS)
        padded = next((size for size in (wave, 2 * wave) if rows <= size), BLOCK_ROWS)
        found.append((begin, begin + rows, padded if rows >= PADDED_ROWS else 0))
    return found


def wave_rows(device: torch.device, shape: AttentionShape) -> int:
    """As many queries as the device has at once."""
    tiles = max(1, device_of(device).multiprocessors // shape.heads)
    return min(TILE_ROWS * tiles, BLOCK_ROWS)


def stretches(past: int, has_plans: bool) -> list[int]:
    """Ends of the stretches of ``past`` tokens that a block of queries sees whole; what is left goes with its own.

    For plans, whole ones, then halves of it down to SHORTEST_TOKENS.
    """
    ends = [0]
    size = STRETCH_TOKENS
    while size >= (SHORTEST_TOKENS if has_plans else STRETCH_TOKENS):
        ends += range(ends[-1] + size, past + 1, size)
        size //= 2
    return ends[1:]


def _attend(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    pages: Tensor,
    seen: int,
    shape: AttentionShape,
    padded_rows: int,
    out: Tensor,
) -> None:
    """A block of queries, the last of ``seen`` tokens; ``padded_rows`` is 0 where cuDNN gets nothing."""
    rows = query.shape[0]
    past, ends = seen - rows, [*stretches(seen - rows, padded_rows > 0), seen]
    heads, padded = query.transpose(0, 1)[None], query
    if len(ends) > 1 and padded_rows > rows:
        padded = torch.cat([query, query.new_zeros(padded_rows - rows, *query.shape[1:])])
    brought = 0
    size = 2 * min(seen, STRETCH_TOKENS + rows) * shape.kv_width
    workspace = torch.empty(size, dtype=query.dtype, device=query.device)
    parts: list[tuple[Tensor, Tensor]] = []
    for begin, end in pairwise([0, *ends]):
        if begin == brought:  # at a multiple of STRETCH_TOKENS: all up to the next, or to the end
            first, brought = begin, begin + STRETCH_TOKENS if begin + STRETCH_TOKENS <= past else seen
            rows_of = _expanded(kv, layer, pages, first, brought - first, shape, workspace)
        key, value = (part[:, :, begin - first : end - first] for part in rows_of)
        if end == seen or not padded_rows:
            parts.append(_flash(heads, key, value, end == seen, shape.softmax_scale))
        else:
            part, lse = _cudnn(padded.transpose(0, 1)[None], key, value, shape.softmax_scale)
            parts.append((part, lse[:, :rows].contiguous()))
        if end == seen:
            _merge(parts, projected[:, shape.gate_columns], out, rows, shape)
        elif len(parts) == MERGED:
            merged = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            parts = [_merge(parts, None, merged, rows, shape)]


def _expanded(
    kv: PagedKv, layer: int, pages: Tensor, begin: int, count: int, shape: AttentionShape, workspace: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values ``[1, KV, count, D]`` of the positions from ``begin`` on, in ``workspace``.

    All heads of a token lie side by side, so that the strides of a plan are the same for any count.
    """
    layout, touched = kv.layout, (begin + count - 1) // PAGE_TOKENS - begin // PAGE_TOKENS + 1
    device_of(workspace.device).kernel(expand_name(layout.codec.name))(
        (touched, shape.kv_heads, 1),
        kv.pages.data_ptr() + layout.layer_bytes * layer,
        pages.data_ptr(),
        workspace.data_ptr(),
        begin,
        count,
        layout.page_bytes,
        programmatic=True,
    )
    both = workspace[: 2 * count * shape.kv_width].view(2, 1, count, shape.kv_heads, shape.head_dim).transpose(2, 3)
    return both[0], both[1]


def _flash(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs ``[T, H, D]`` and log-sum-exps ``[H, T]``; if causal, the last query sees the last key."""
    found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, False, scale=scale)
    return found[0][0].transpose(0, 1).contiguous(), found[1][0].contiguous()


def _cudnn(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same, not causal."""
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    found = attend(query, key, value, None, True, 0.0, False, False, scale=scale)
    return found[0][0].transpose(0, 1).contiguous(), found[1][0, :, :, 0]


@lru_cache
def cudnn_serves(device: torch.device, shape: AttentionShape) -> bool:
    """Whether cuDNN has attention for this size of head on ``device``, found out by trying, which takes a second."""
    block = torch.zeros(1, shape.heads, BLOCK_ROWS, shape.head_dim, dtype=torch.bfloat16, device=device)
    try:
        _cudnn(block, block[:, : shape.kv_heads], block[:, : shape.kv_heads], shape.softmax_scale)
    except RuntimeError as error:
        _log.info("prefill attention by FlashAttention-2: %s", str(error).splitlines()[0])
        return False
    return True


def _merge(
    parts: list[tuple[Tensor, Tensor]], gate: Tensor | None, out: Tensor, rows: int, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """To ``out``, and the log-sum-exps unless there is a gate."""
    lse = parts[0][1]
    if gate is None:
        lse = torch.empty(lse.shape, dtype=lse.dtype, device=lse.device)
    filled = parts + parts[:1] * (MERGED - len(parts))
    device_of(out.device).kernel("attention_merge")(
        (rows, -(-shape.heads // MERGE_WARPS), 1),
        *(tensor.data_ptr() for part in filled for tensor in part),
        0 if gate is None else gate.data_ptr(),
        out.data_ptr(),
        lse.data_ptr(),
        0 if gate is None else 2 * gate.stride(0),
        len(parts),
        rows,
        shape.heads,
        programmatic=True,
    )
    return out, lse


def _check(device: torch.device) -> None:
    """Small contexts of every codec against the reference in float64, and cuDNN's part against FlashAttention's."""
    shape = AttentionShape(heads=6, kv_heads=2, head_dim=PREFILL_HEAD_DIM, rotary_dim=64)
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16()

    def cache(codec: str, pages: Tensor) -> PagedKv:
        kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], 2, shape.kv_heads, shape.head_dim), len(pages) + 3)
        slots = (PAGE_TOKENS * pages.long()[:, None] + torch.arange(PAGE_TOKENS)).flatten()
        new = normal(2, len(slots), shape.kv_heads, shape.head_dim)
        store(kv, 1, slots, new[0], new[1])
        return kv

    context, pages = 331, torch.tensor([8, 2, 5, 1, 7, 4]).int()
    for codec, tokens in product(EXPANDED, (5, DECODED_ROWS + 3)):
        kv = cache(codec, pages)
        query, projected = normal(tokens, shape.heads, shape.head_dim), normal(tokens, shape.projected_width)
        there = PagedKv(kv.pages.to(device), kv.layout)
        out = attention_prefill(query.to(device), projected.to(device), there, 1, pages.to(device), context, shape)
        expected = reference.attention_prefill(query.double(), projected.double(), kv, 1, pages, context, shape)
        assert_close(f"attention_prefill, {codec}", out, expected, ROUNDING)
    if not cudnn_serves(device, shape):
        return
    rows, context, pages = PADDED_ROWS + 3, SHORTEST_TOKENS + PADDED_ROWS + 50, torch.arange(21).int()
    query, projected = normal(rows, shape.heads, shape.head_dim), normal(rows, shape.projected_width)
    kv = cache("nvfp4", pages)
    arguments = projected.to(device), PagedKv(kv.pages.to(device), kv.layout), 1, pages.to(device)
    out = attention_prefill(query.to(device), *arguments, context, shape)
    expected = torch.empty_like(out)
    _attend(query.to(device), *arguments, context, shape, 0, expected)
    assert_close("attention_prefill by cuDNN", out, expected, ROUNDING)


GROUP = OpGroup(
    "attention_prefill", tuple(spec.name for spec in KERNELS), {"attention_prefill": attention_prefill}, _check
)
