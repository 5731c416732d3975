"""Vectors into a paged cache and out of it, of any codec, with torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.encode import decode, encode_keys, encode_values, turned
from kernels_numba.kv.order import Plane, planes
from kernels_numba.kv.paged import PagedKv


def store(kv: PagedKv, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write ``keys, values [N, KV, D]`` to ``slots`` (int64 [N], page * PAGE_TOKENS + offset).

    Keys are normed and rotated by position; the rotation of the codec is part of the write.
    """
    codec = kv.layout.codec
    page, offset = slots // PAGE_TOKENS, slots % PAGE_TOKENS
    if codec.is_plain:
        plain = kv.plain
        plain[page, layer, :, 0, offset] = turned(codec, keys).to(plain.dtype)
        plain[page, layer, :, 1, offset] = values.to(plain.dtype)
        return
    order = planes(kv.layout, kv.pages.device)
    (key_codes, key_scales), (value_codes, value_scales) = encode_keys(codec, keys), encode_values(codec, values)
    _write(kv, layer, page, offset, 0, order.key_codes, key_codes)
    _write(kv, layer, page, offset, kv.layout.key_scales_offset, order.key_scales, key_scales)
    _write(kv, layer, page, offset, kv.layout.value_codes_offset, order.value_codes, value_codes)
    _write(kv, layer, page, offset, kv.layout.value_scales_offset, order.value_scales, value_scales)


def load(kv: PagedKv, layer: int, pages: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys, turned as they were stored, and values of ``pages [P]``, each ``[P, KV, PAGE_TOKENS, D]`` in ``dtype``."""
    layout = kv.layout
    if layout.codec.is_plain:
        key, value = kv.plain[pages, layer].to(dtype).unbind(2)
        return key, value
    order, runs = planes(layout, kv.pages.device), kv.runs[pages, layer]
    ends = (layout.key_scales_offset, layout.value_codes_offset, layout.value_scales_offset)
    key_codes, key_scales, value_codes, value_scales = torch.tensor_split(runs, ends, -1)
    key = decode(layout.codec.key, _read(order.key_codes, key_codes), _read(order.key_scales, key_scales))
    value = decode(layout.codec.value, _read(order.value_codes, value_codes), _read(order.value_scales, value_scales))
    return key.to(dtype), value.to(dtype)


def _write(kv: PagedKv, layer: int, page: Tensor, offset: Tensor, begin: int, plane: Plane, vectors: Tensor) -> None:
    """Codes or scales ``vectors [N, KV, n]`` to the plane that begins ``begin`` bytes into every head run."""
    layout, size = kv.layout, plane.element_bytes
    heads = torch.arange(layout.kv_heads, device=page.device) * (layout.head_bytes // size)
    token = page * (layout.page_bytes // size) + (layer * layout.layer_bytes + begin) // size
    places = (token[:, None] + heads)[:, :, None] + plane.places[offset][:, None]
    elements = plane.elements(vectors)
    kv.pages.view(elements.dtype).view(-1)[places] = elements


def _read(plane: Plane, stored: Tensor) -> Tensor:
    return plane.vectors(stored.contiguous() if plane.element_bytes == 1 else stored.contiguous().view(torch.int16))
