"""The paged cache as compiled code sees it: numbers as they are, or bytes with the tables of their order."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from numba.extending import overload

from kernels_numba.cpu import kv_decode, kv_encode
from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.kv_encode import NVFP4
from kernels_numba.cpu.storage import store32, stored
from kernels_numba.kv.codec import FP8, INT8
from kernels_numba.kv.codec import NVFP4 as NVFP4_FORMAT
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.order import Plane, planes
from kernels_numba.kv.paged import PagedKv

_NUMBERS = {NVFP4_FORMAT: kv_encode.NVFP4, FP8: kv_encode.FP8, INT8: kv_encode.INT8}


class Order(NamedTuple):
    """Tables of a quantised layout, uint32; places are elements from the beginning of a head run on."""

    key_format: int
    value_format: int
    key_places: Any  # [PAGE_TOKENS, E]
    key_members: Any  # [E, M]
    key_scale_places: Any  # [PAGE_TOKENS, E]
    value_places: Any
    value_members: Any
    value_scale_places: Any
    value_pairs: Any  # [PAGE_TOKENS / 2, E], places of elements of twice the size, each of two tokens
    e4m3: Any  # float32 [128], values of words without a sign


class QuantisedPages(NamedTuple):
    """All head runs ``[pages, layers, kv heads, head run]`` as bytes, as 16-bit and as 32-bit words."""

    bytes: Any
    halves: Any
    words: Any
    order: Order


def pages_of(kv: PagedKv) -> Any:
    """What the functions below take: an array of float32 or bfloat16 bits like ``kv.plain``, or QuantisedPages."""
    if kv.layout.codec.is_plain:
        return stored(kv.plain)
    runs = kv.runs.numpy()
    return QuantisedPages(runs, runs.view(np.uint16), runs.view(np.uint32), _order(kv.layout))


@lru_cache(maxsize=16)
def key_dims(layout: KvLayout) -> Any:
    """Order of the dimensions of keys that were read, uint32 [D]; queries are gathered in the same."""
    if layout.codec.is_plain:
        return np.arange(layout.head_dim, dtype=np.uint32)
    return _table(planes(layout, torch.device("cpu")).key_codes.members.T.flatten())


@lru_cache(maxsize=16)
def _order(layout: KvLayout) -> Order:
    order, codec = planes(layout, torch.device("cpu")), layout.codec
    value_codes = order.value_codes
    natural = value_codes.members[:, 0].argsort()
    value_places = _places(value_codes, layout.value_codes_offset)[:, natural].copy()
    return Order(
        _NUMBERS[codec.key],
        _NUMBERS[codec.value],
        _places(order.key_codes, 0),
        _table(order.key_codes.members),
        _places(order.key_scales, layout.key_scales_offset),
        value_places,
        _table(value_codes.members[natural]),
        _places(order.value_scales, layout.value_scales_offset),
        value_places[::2] // 2,
        torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy(),
    )


def _places(plane: Plane, begin_bytes: int) -> Any:
    return _table(plane.places + begin_bytes // plane.element_bytes)


def _table(numbers: torch.Tensor) -> Any:
    table: Any = numbers.numpy().astype(np.uint32)
    return table


def write_vectors(kv: Any, page: Any, layer: Any, head: Any, offset: Any, key: Any, value: Any) -> None:
    """Store a key, turned if the codec wants that, and a value, float32 [D] each."""
    raise NotImplementedError("compiled code only")


@overload(write_vectors)
def _write_vectors(kv: Any, page: Any, layer: Any, head: Any, offset: Any, key: Any, value: Any) -> Any:  # noqa: ARG001
    def plain(kv: Any, page: Any, layer: Any, head: Any, offset: Any, key: Any, value: Any) -> None:
        key_place, value_place = kv[page, layer, head, 0, offset], kv[page, layer, head, 1, offset]
        for d in range(key.shape[0]):
            store32(key_place, d, key[d])
            store32(value_place, d, value[d])

    def quantised(kv: Any, page: Any, layer: Any, head: Any, offset: Any, key: Any, value: Any) -> None:
        _write_quantised(kv, page, layer, head, offset, key, value)

    return plain if isinstance(kv, types.Array) else quantised


@compiled(ORDERED)
def _write_quantised(kv: Any, page: Any, layer: Any, head: Any, offset: Any, key: Any, value: Any) -> None:
    order, run, halves = kv.order, kv.bytes[page, layer, head], kv.halves[page, layer, head]
    rounded, codes = np.empty(key.shape[0], np.float32), np.empty(key.shape[0], np.uint8)
    _write_part(
        order.key_format,
        key,
        order.key_places[offset],
        order.key_members,
        order.key_scale_places[offset],
        order.e4m3,
        rounded,
        codes,
        run,
        halves,
    )
    _write_part(
        order.value_format,
        value,
        order.value_places[offset],
        order.value_members,
        order.value_scale_places[offset],
        order.e4m3,
        rounded,
        codes,
        run,
        halves,
    )


@compiled(ORDERED)
def _write_part(
    number: Any,
    x: Any,
    places: Any,
    members: Any,
    scale_places: Any,
    e4m3: Any,
    rounded: Any,
    codes: Any,
    run: Any,
    halves: Any,
) -> None:
    per_element = 2 if number == NVFP4 else 1
    scales = np.empty(per_element * scale_places.shape[0], np.uint16)
    kv_encode.round_to_bfloat16(x, rounded)
    kv_encode.quantise(number, rounded, codes, scales, e4m3)
    if number == NVFP4:
        kv_encode.put_codes_of_four(codes, places, members, halves)
        kv_encode.put_pairs_of_scales(scales, scale_places, halves)
    else:
        kv_encode.put_singles(codes, places, run)
        kv_encode.put_singles(scales, scale_places, halves)


def read_page(kv: Any, page: Any, layer: Any, head: Any, scratch: Any) -> Any:
    """Keys and values ``[PAGE_TOKENS, D]`` of one head: where they lie, or decoded to ``scratch [2, PAGE_TOKENS, D]``.

    Keys are in the order of ``key_dims``.
    """
    raise NotImplementedError("compiled code only")


@overload(read_page)
def _read_page(kv: Any, page: Any, layer: Any, head: Any, scratch: Any) -> Any:  # noqa: ARG001
    def plain(kv: Any, page: Any, layer: Any, head: Any, scratch: Any) -> Any:  # noqa: ARG001
        return kv[page, layer, head, 0], kv[page, layer, head, 1]

    def quantised(kv: Any, page: Any, layer: Any, head: Any, scratch: Any) -> Any:
        _decode_page(kv, page, layer, head, scratch)
        return scratch[0], scratch[1]

    return plain if isinstance(kv, types.Array) else quantised


@compiled(ORDERED)
def _decode_page(kv: Any, page: Any, layer: Any, head: Any, scratch: Any) -> None:
    order, halves = kv.order, kv.halves[page, layer, head]
    keys, values = scratch[0], scratch[1]
    places, scale_places = order.key_places, order.key_scale_places
    if order.key_format == NVFP4:
        kv_decode.nvfp4_keys(halves, places, scale_places, order.e4m3, keys)
    else:
        kv_decode.byte_keys(order.key_format, kv.bytes[page, layer, head], halves, places, scale_places, keys)
    pairs, scale_places = order.value_pairs, order.value_scale_places
    if order.value_format == NVFP4:
        kv_decode.nvfp4_values(halves, kv.words[page, layer, head], pairs, scale_places, order.e4m3, values)
    else:
        kv_decode.byte_values(order.value_format, halves, pairs, scale_places, values)
