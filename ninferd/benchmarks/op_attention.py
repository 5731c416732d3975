"""Attention over the paged cache in every codec, and writes to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import AttentionNorms
from ninferd.benchmarks.kernels import KernelOptions, Timing
from ninferd.benchmarks.results import Skipped
from ninferd.benchmarks.roofs import causal_pairs
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import seconds_per_call
from ninferd.engine.build import free_bytes
from ninferd.memory.budget import HEADROOM_BYTES
from ninferd.models.qwen3_5.attention import AttentionLayer

CACHE_BYTES: Final = 8 << 30
"""Layers of a cache are left out beyond so many bytes."""
TEMPLATE_PAGES: Final = 32
APPEND_LAYERS: Final = 16
MIXED_LANES: Final = (2, 4, 8)


@dataclass(frozen=True)
class _Cache:
    """Sequences in a cache whose pages lie in any order."""

    kv: PagedKv
    page_table: Tensor  # int32 [lanes, pages]
    lengths: Sequence[int]

    @property
    def read_bytes(self) -> int:
        """Of one layer, by attention of one row or many."""
        return sum(self.lengths) * self.kv.layout.layer_bytes // PAGE_TOKENS


def measure_attention(subject: Subject, options: KernelOptions) -> Iterator[Timing | Skipped]:
    """Decode by codec, lanes, context and rows; lanes of different lengths; prefill chunks at the end of a context."""
    for kv_dtype in options.kv_dtypes:
        problem = subject.storage_problem(kv_dtype)
        if problem is not None:
            yield Skipped(f"attention over {kv_dtype}", problem)
            continue
        for context in options.contexts:
            for lanes in options.lanes:
                no_room = _no_room(subject, kv_dtype, [context] * lanes)
                if no_room is not None:
                    yield no_room
                    continue
                cache = _filled(subject, kv_dtype, [context] * lanes)
                for rows in options.rows:
                    yield _decode(subject, cache, rows, kv_dtype, context, "decode")
                if lanes == 1:
                    for rows in options.prefill_rows:
                        if rows <= context:
                            yield _prefill(subject, cache, rows, kv_dtype)
        longest = max(options.contexts)
        for lanes in (lanes for lanes in MIXED_LANES if lanes <= max(options.lanes)):
            lengths = [max(PAGE_TOKENS, longest >> lane) for lane in range(lanes)]
            no_room = _no_room(subject, kv_dtype, lengths)
            if no_room is not None:
                yield no_room
                continue
            yield _decode(
                subject, _filled(subject, kv_dtype, lengths), 1, kv_dtype, longest, "decode, each half as long"
            )


def measure_append(subject: Subject, options: KernelOptions) -> Iterator[Timing | Skipped]:
    """Writes of a round and of a prefill chunk, with norms, rope and the queries."""
    shape = subject.model.config.attention
    for kv_dtype in options.kv_dtypes:
        problem = subject.storage_problem(kv_dtype)
        if problem is not None:
            yield Skipped(f"attention over {kv_dtype}", problem)
            continue
        for rows in (*options.rows, *options.prefill_rows):
            layout = _layout(subject, kv_dtype, APPEND_LAYERS)
            pages = 2 * max(options.prefill_rows, default=0) // PAGE_TOKENS + TEMPLATE_PAGES
            kv = PagedKv.zeros(layout, pages, subject.device)
            slots = torch.randperm(pages * PAGE_TOKENS)[:rows].to(subject.device)
            calls = [
                partial(_append, subject, kv, layer, _rows(subject, rows), slots) for layer in range(layout.layers)
            ]
            written = rows * layout.layer_bytes // PAGE_TOKENS
            values = rows * (2 * shape.query_width + 2 * shape.kv_width) * subject.model.dtype.itemsize
            yield Timing(
                op="append_kv",
                case="norms, rope, queries, cache",
                rows=rows,
                per_call=seconds_per_call(calls, subject.device),
                kv_dtype=kv_dtype,
                read_bytes=written + values,
            )


def _decode(subject: Subject, cache: _Cache, rows: int, kv_dtype: str, context: int, case: str) -> Timing:
    shape, lanes = subject.model.config.attention, len(cache.lengths)
    lengths = torch.tensor(cache.lengths, device=subject.device)
    query, projected = _queries(subject, lanes * rows), _rows(subject, lanes * rows)
    calls = [
        partial(subject.model.ops.attention_decode, query, projected, cache.kv, layer, cache.page_table, lengths, shape)
        for layer in range(cache.kv.layout.layers)
    ]
    return Timing(
        op="attention_decode",
        case=case,
        rows=rows,
        per_call=seconds_per_call(calls, subject.device),
        lanes=lanes,
        context_tokens=context,
        kv_dtype=kv_dtype,
        read_bytes=cache.read_bytes,
    )


def _prefill(subject: Subject, cache: _Cache, rows: int, kv_dtype: str) -> Timing:
    shape, (context,) = subject.model.config.attention, cache.lengths
    query, projected = _queries(subject, rows), _rows(subject, rows)
    layers = range(min(2, cache.kv.layout.layers))
    calls = [
        partial(
            subject.model.ops.attention_prefill,
            query,
            projected,
            cache.kv,
            layer,
            cache.page_table[0],
            context,
            shape,
        )
        for layer in layers
    ]
    return Timing(
        op="attention_prefill",
        case="the last rows of a context",
        rows=rows,
        per_call=seconds_per_call(calls, subject.device),
        context_tokens=context,
        kv_dtype=kv_dtype,
        flops=4 * shape.query_width * causal_pairs(rows, context),
    )


def _no_room(subject: Subject, kv_dtype: str, lengths: Sequence[int]) -> Skipped | None:
    """Why a cache of these lengths cannot be made, beside what measuring needs."""
    needed = _pages(lengths) * _layout(subject, kv_dtype, _layers(subject, kv_dtype, lengths)).page_bytes
    free = free_bytes(subject.device)
    if needed + HEADROOM_BYTES <= free:
        return None
    what = f"attention over {kv_dtype}, {len(lengths)} lanes of up to {max(lengths)} tokens"
    return Skipped(what, f"a cache of {needed / 1e9:.2f} GB does not fit into {free / 1e9:.2f} GB with room to work in")


def _pages(lengths: Sequence[int]) -> int:
    return sum(-(-length // PAGE_TOKENS) for length in lengths)


def _layers(subject: Subject, kv_dtype: str, lengths: Sequence[int]) -> int:
    """As many as the model has, or as ``CACHE_BYTES`` hold."""
    layer_bytes = _pages(lengths) * _layout(subject, kv_dtype, 1).page_bytes
    return max(1, min(subject.model.config.attention_layer_count, CACHE_BYTES // layer_bytes))


def _layout(subject: Subject, kv_dtype: str, layers: int) -> KvLayout:
    shape = subject.model.config.attention
    return KvLayout(KV_CODECS[kv_dtype], layers, shape.kv_heads, shape.head_dim)


def _filled(subject: Subject, kv_dtype: str, lengths: Sequence[int]) -> _Cache:
    """A cache of as many layers as the model has, or as fit, with random keys and values."""
    counts = [-(-length // PAGE_TOKENS) for length in lengths]
    pages, layers = sum(counts), _layers(subject, kv_dtype, lengths)
    kv = PagedKv.zeros(_layout(subject, kv_dtype, layers), pages, subject.device)
    template = min(TEMPLATE_PAGES, pages)
    slots = torch.arange(template * PAGE_TOKENS, device=subject.device)
    for layer in range(layers):
        _append(subject, kv, layer, _rows(subject, len(slots)), slots)
    for begin in range(template, pages, template):  # the same bytes at addresses of their own
        count = min(template, pages - begin)
        kv.pages[begin : begin + count].copy_(kv.pages[:count])
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    for row, own in zip(table, torch.split(torch.randperm(pages), counts), strict=True):
        row[: len(own)] = own
    return _Cache(kv, table.to(subject.device), lengths)


def _append(subject: Subject, kv: PagedKv, layer: int, projected: Tensor, slots: Tensor) -> None:
    norms, angles = _norms(subject), _angles(subject, len(slots))
    subject.model.ops.append_kv(projected, norms, *angles, kv, layer, slots, subject.model.config.attention)


def _angles(subject: Subject, rows: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [rows, half of the dimensions that turn]."""
    half = subject.model.config.attention.rotary_dim // 2
    angles = 0.1 * torch.arange(rows * half, device=subject.device).view(rows, half)
    return angles.cos(), angles.sin()


def _norms(subject: Subject) -> AttentionNorms:
    mixers = (layer.mixer for layer in subject.model.weights.layers)
    return next(mixer.norms for mixer in mixers if isinstance(mixer, AttentionLayer))


def _rows(subject: Subject, rows: int) -> Tensor:
    width = subject.model.config.attention.projected_width
    return torch.randn(rows, width, device=subject.device).to(subject.model.dtype)


def _queries(subject: Subject, rows: int) -> Tensor:
    shape = subject.model.config.attention
    return torch.randn(rows, shape.heads, shape.head_dim, device=subject.device).to(subject.model.dtype)
