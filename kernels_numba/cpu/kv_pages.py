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


class Part(NamedTuple):
    """The tables of keys or of values, uint32; places are elements from the beginning of a head run on."""

    number: int
    places: Any  # [PAGE_TOKENS, E]
    members: Any  # [E, M]
    scale_places: Any  # [PAGE_TOKENS, scale elements]
    pairs: Any  # [PAGE_TOKENS / 2, E], of values: places of elements of twice the size, each of two tokens


class QuantisedPages(NamedTuple):
    """All head runs ``[pages, layers, kv heads, head run]`` as bytes, as 16-bit and as 32-bit words."""

    bytes: Any
    halves: Any
    words: Any
    key: Part
    value: Part
    e4m3: Any  # float32 [128], values of words without a sign


def pages_of(kv: PagedKv) -> Any:
    """What the functions below take: an array of float32 or bfloat16 bits like ``kv.plain``, or QuantisedPages."""
    if kv.layout.codec.is_plain:
        return stored(kv.plain)
    runs = kv.runs.numpy()
    return QuantisedPages(runs, runs.view(np.uint16), runs.view(np.uint32), *_parts(kv.layout), _e4m3())


@lru_cache(maxsize=16)
def key_dims(layout: KvLayout) -> Any:
    """Order of the dimensions of keys that were read, uint32 [D]; queries are gathered in the same."""
    if layout.codec.is_plain:
        return np.arange(layout.head_dim, dtype=np.uint32)
    return _table(planes(layout, torch.device("cpu")).key_codes.members.T.flatten())


@lru_cache(maxsize=16)
def _parts(layout: KvLayout) -> tuple[Part, Part]:
    order, codec = planes(layout, torch.device("cpu")), layout.codec
    value_codes = order.value_codes
    natural = value_codes.members[:, 0].argsort()
    key_places = _places(order.key_codes, 0)
    value_places = _places(value_codes, layout.value_codes_offset)[:, natural].copy()
    return (
        Part(
            _NUMBERS[codec.key],
            key_places,
            _table(order.key_codes.members),
            _places(order.key_scales, layout.key_scales_offset),
            key_places[:0],
        ),
        Part(
            _NUMBERS[codec.value],
            value_places,
            _table(value_codes.members[natural]),
            _places(order.value_scales, layout.value_scales_offset),
            value_places[::2] // 2,
        ),
    )


@lru_cache(maxsize=1)
def _e4m3() -> Any:
    return torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


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
    run, halves = kv.bytes[page, layer, head], kv.halves[page, layer, head]
    _write_part(kv.key, offset, key, kv.e4m3, run, halves)
    _write_part(kv.value, offset, value, kv.e4m3, run, halves)


@compiled(ORDERED)
def _write_part(part: Any, offset: Any, x: Any, e4m3: Any, run: Any, halves: Any) -> None:
    places, scale_places = part.places[offset], part.scale_places[offset]
    per_element = 2 if part.number == NVFP4 else 1
    rounded, codes = np.empty(x.shape[0], np.float32), np.empty(x.shape[0], np.uint8)
    scales = np.empty(per_element * scale_places.shape[0], np.uint16)
    kv_encode.round_to_bfloat16(x, rounded)
    kv_encode.quantise(part.number, rounded, codes, scales, e4m3)
    if part.number == NVFP4:
        kv_encode.put_codes_of_four(codes, places, part.members, halves)
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
    key, value, halves = kv.key, kv.value, kv.halves[page, layer, head]
    if key.number == NVFP4:
        kv_decode.nvfp4_keys(halves, key.places, key.scale_places, kv.e4m3, scratch[0])
    else:
        codes = kv.bytes[page, layer, head]
        kv_decode.byte_keys(key.number, codes, halves, key.places, key.scale_places, scratch[0])
    if value.number == NVFP4:
        words = kv.words[page, layer, head]
        kv_decode.nvfp4_values(halves, words, value.pairs, value.scale_places, kv.e4m3, scratch[1])
    else:
        kv_decode.byte_values(value.number, halves, value.pairs, value.scale_places, scratch[1])
