"""Gated attention over paged keys and values, page by page with a running softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, REORDERED, compiled
from kernels_numba.cpu.kv_encode import hadamard
from kernels_numba.cpu.kv_pages import key_dims, pages_of, read_page, write_vectors
from kernels_numba.cpu.products import ROWS, add_products_of_four, dots_of_four
from kernels_numba.cpu.rows import rms_norm_row
from kernels_numba.cpu.scalar import exp32, sigmoid
from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.paged import PagedKv
from kernels_numba.shapes import AttentionNorms, AttentionShape

QUERY_BLOCK = 16
"""Query positions that share one pass over the cached pages."""


def append_kv(
    projected: Tensor,
    norms: AttentionNorms,
    cos: Tensor,
    sin: Tensor,
    kv: PagedKv,
    layer: int,
    slot_mapping: Tensor,
    shape: AttentionShape,
) -> Tensor:
    query = torch.empty(projected.shape[0], shape.heads, shape.head_dim)
    _append_kv(
        projected.numpy(),
        norms.query.numpy(),
        norms.key.numpy(),
        norms.eps,
        cos.numpy(),
        sin.numpy(),
        pages_of(kv),
        layer,
        kv.layout.codec.rotates_keys,
        slot_mapping.numpy(),
        query.numpy(),
    )
    return query


def attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    return _run(
        query, query.shape[0] // max(1, len(context_lengths)), projected, kv, layer, page_table, context_lengths, shape
    )


def attention_prefill(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    pages: Tensor,
    context_length: int,
    shape: AttentionShape,
) -> Tensor:
    tokens = query.shape[0]
    return _run(query, tokens, projected, kv, layer, pages[None], torch.tensor([context_length]), shape)


def _run(
    query: Tensor,
    tokens_each: int,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    out = torch.empty(query.shape[0], shape.query_width)
    _sequences(
        query.numpy(),
        tokens_each,
        projected.numpy(),
        pages_of(kv),
        layer,
        key_dims(kv.layout),
        shape.kv_heads,
        page_table.contiguous().numpy(),
        context_lengths.numpy(),
        shape.softmax_scale,
        out.numpy(),
    )
    return out


@compiled(ORDERED)
def _append_kv(
    projected: Any,
    query_norm: Any,
    key_norm: Any,
    eps: Any,
    cos: Any,
    sin: Any,
    kv: Any,
    layer: Any,
    turns: Any,
    slot_mapping: Any,
    query: Any,
) -> None:
    heads, head_dim = query.shape[1:]
    kv_heads = projected.shape[1] // (2 * head_dim) - heads
    key = np.empty(head_dim, np.float32)
    for row in range(projected.shape[0]):
        columns = projected[row]
        for head in range(heads):
            rms_norm_row(columns[head * head_dim : (head + 1) * head_dim], query_norm, eps, query[row, head])
            _rotate(query[row, head], cos[row], sin[row])
            if turns:
                hadamard(query[row, head])
        page, offset = slot_mapping[row] // PAGE_TOKENS, slot_mapping[row] % PAGE_TOKENS
        for head in range(kv_heads):
            start = (2 * heads + head) * head_dim
            rms_norm_row(columns[start : start + head_dim], key_norm, eps, key)
            _rotate(key, cos[row], sin[row])
            if turns:
                hadamard(key)
            start += kv_heads * head_dim
            write_vectors(kv, page, layer, head, offset, key, columns[start : start + head_dim])


@compiled(ORDERED)
def _rotate(x: Any, cos: Any, sin: Any) -> None:
    half = cos.shape[0]
    for j in range(half):
        first, second = x[j], x[half + j]
        x[j] = first * cos[j] - second * sin[j]
        x[half + j] = second * cos[j] + first * sin[j]


@compiled(ORDERED)
def _sequences(
    query: Any,
    tokens_each: Any,
    projected: Any,
    kv: Any,
    layer: Any,
    dims: Any,
    kv_heads: Any,
    page_table: Any,
    context_lengths: Any,
    scale: Any,
    out: Any,
) -> None:
    heads, head_dim = query.shape[1:]
    group = heads // kv_heads
    block = min(QUERY_BLOCK, tokens_each)
    # The query vectors of a block that share a kv head, padded to whole fours with zeros.
    padded = -(-block * group // ROWS) * ROWS
    vectors = np.empty((padded, head_dim), np.float32)
    sums = np.empty((padded, head_dim), np.float32)
    scores = np.empty((padded, PAGE_TOKENS), np.float32)
    decoded = np.empty((2, PAGE_TOKENS, head_dim), np.float32)
    maxima = np.empty(padded, np.float32)
    totals = np.empty(padded, np.float32)
    for sequence in range(context_lengths.shape[0]):
        for first in range(0, tokens_each, block):
            count = min(block, tokens_each - first)
            base = sequence * tokens_each + first
            position = context_lengths[sequence] - tokens_each + first
            rows, pages = slice(base, base + count), page_table[sequence]
            for kv_head in range(kv_heads):
                _gather(query[rows], kv_head, group, np.float32(scale), dims, vectors)
                sums[:] = 0
                totals[:] = 0
                maxima[:] = -np.inf
                for logical in range((position + count - 1) // PAGE_TOKENS + 1):
                    keys, values = read_page(kv, pages[logical], layer, kv_head, decoded)
                    start = logical * PAGE_TOKENS
                    valid = min(PAGE_TOKENS, position + count - start)
                    _score(vectors, keys, valid, scores)
                    _soften(scores, valid, group, position - start, sums, maxima, totals)
                    for four in range(0, padded, ROWS):
                        weights = scores[four : four + ROWS, :valid]
                        add_products_of_four(weights, values[:valid], sums[four : four + ROWS])
                _emit(sums, totals, projected[rows], kv_head, group, out[rows])


@compiled(ORDERED)
def _gather(query: Any, kv_head: Any, group: Any, scale: Any, dims: Any, vectors: Any) -> None:
    """Scaled queries of a block that share ``kv_head``: vector v is member ``v % group`` of row ``v // group``.

    Their dimensions are in the order ``dims``, as those of the keys.
    """
    vectors[:] = 0
    for row in range(query.shape[0]):
        for member in range(group):
            source, target = query[row, kv_head * group + member], vectors[row * group + member]
            for d in range(source.shape[0]):
                target[d] = source[dims[d]] * scale


@compiled(ORDERED)
def _emit(sums: Any, totals: Any, projected: Any, kv_head: Any, group: Any, out: Any) -> None:
    """Normalise the sums of a block and gate them."""
    width, head_dim = out.shape[1], sums.shape[1]
    for row in range(out.shape[0]):
        for member in range(group):
            vector, first = row * group + member, (kv_head * group + member) * head_dim
            gate = projected[row, width + first : width + first + head_dim]
            mixed = out[row, first : first + head_dim]
            for d in range(head_dim):
                mixed[d] = sums[vector, d] / totals[vector] * sigmoid(gate[d])


@compiled(ORDERED)
def _score(vectors: Any, keys: Any, valid: Any, scores: Any) -> None:
    """Scores of ``valid`` keys, rounded up to whole fours so that every score is summed in the same way."""
    for t in range(0, valid, ROWS):
        for four in range(0, vectors.shape[0], ROWS):
            dots_of_four(vectors[four : four + ROWS], keys, t, scores[four : four + ROWS])


@compiled(REORDERED)
def _soften(scores: Any, valid: Any, group: Any, offset: Any, sums: Any, maxima: Any, totals: Any) -> None:
    """Scores of a page to weights relative to the running maximum; rescales what was summed under the old one.

    Vector v belongs to query position ``offset + v // group``, counted from the start of the page.
    """
    for vector in range(scores.shape[0]):
        line = scores[vector]
        visible = max(min(valid, offset + vector // group + 1), 0)
        maximum = maxima[vector]
        for t in range(visible):
            maximum = max(maximum, line[t])
        rescale = exp32(maxima[vector] - maximum) if visible > 0 else np.float32(1)
        total = np.float32(0)
        for t in range(visible):
            line[t] = exp32(line[t] - maximum)
            total += line[t]
        line[visible:valid] = 0
        maxima[vector] = maximum
        totals[vector] = totals[vector] * rescale + total
        for d in range(sums.shape[1]):
            sums[vector, d] = sums[vector, d] * rescale
