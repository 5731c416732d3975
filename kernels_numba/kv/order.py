"""Where codes and scales of a page lie: natural order to stored order and back.

The codes, or the scales, of the keys, or of the values, of one head run are a *plane*: some elements of one or two
bytes for each of the 64 tokens, none of which belongs to two tokens, so that an append writes whole elements. An
element holds one code or scale, or packs several *members* of its token's vector. Every order here is what the matrix
instructions of the CUDA kernels want in a lane's registers, in 16 bytes in a row:

* ``nvfp4`` codes: 16-bit elements of 4 codes, scattered so that shifts and masks leave pairs of float16.
  Keys ``[token block of 16][part][token][q 4][word][half 2]``: dimensions ``16 group + 4 q + half + {0, 2}`` of
  ``group = 2 words part + 2 word`` and of the next. Values ``[token block][slice of 64][lane 32][hi 2][rh 2][lohi 2]``,
  lane 4 g + q: dimensions ``64 slice + 16 {0, 1, 2, 3} + 8 rh + g`` of token ``8 hi + 2 q + lohi``.
* ``nvfp4`` scales: 16-bit elements of two neighbouring groups, 7 bits each. Keys ``[token][pair of groups]``, values
  ``[token block][slice][q 4][hi 2][pair 2][lohi 2]``.
* 8-bit codes. Keys ``[token][dimension]``, values ``[token block][slice][half 2][lane 32][i 2][hi 2][rh 2][lohi 2]``:
  dimension ``64 slice + 32 half + 16 i + 8 rh + g``.
* float16 scales ``[token][group]`` of keys and ``[group][token]`` of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels_numba.kv.codec import NVFP4, PAGE_TOKENS, VectorFormat
from kernels_numba.kv.layout import KvLayout

_TOKENS = (4, 2, 4, 2)  # block, hi, q, lohi: token = 16 block + 8 hi + 2 q + lohi
_CODE_SHIFTS = ((12, 9), (4, 1), (5, 12), (-3, 4))
"""Of the sign (bit 3) and of the magnitude (bits 0 to 2) of the four codes of an element, to the left."""


@dataclass(frozen=True)
class Plane:
    """The order of one plane."""

    element_bytes: int
    places: Tensor  # int64 [PAGE_TOKENS, E]: the place in the plane of each element of a token
    members: Tensor  # int64 [E, M]: which codes or scales of the vector an element holds
    join: Callable[[Tensor], Tensor]  # members [..., M] to elements
    split: Callable[[Tensor], Tensor]  # and back

    def elements(self, vectors: Tensor) -> Tensor:
        """Codes or scales ``[..., n]`` of vectors as elements ``[..., E]``."""
        return self.join(vectors[..., self.members])

    def vectors(self, plane: Tensor) -> Tensor:
        """Codes or scales ``[..., PAGE_TOKENS, n]`` of stored planes ``[..., elements]``."""
        elements = plane[..., self.places.flatten()].view(*plane.shape[:-1], *self.places.shape)
        found = self.split(elements).flatten(-2)
        return found[..., self.members.flatten().argsort()]


@dataclass(frozen=True)
class Planes:
    """The four planes of a head run, each with its offset in bytes."""

    key_codes: Plane
    key_scales: Plane
    value_codes: Plane
    value_scales: Plane


@lru_cache(maxsize=64)
def planes(layout: KvLayout, device: torch.device) -> Planes:
    """Of a quantised layout, with their tensors on ``device``."""
    head_dim, (key, value) = layout.head_dim, (layout.codec.key, layout.codec.value)
    found = (
        _nvfp4_key_codes(head_dim) if key == NVFP4 else _byte_key_codes(head_dim),
        _nvfp4_key_scales(head_dim) if key == NVFP4 else _half_scales(key, head_dim, of_keys=True),
        _nvfp4_value_codes(head_dim) if value == NVFP4 else _byte_value_codes(head_dim),
        _nvfp4_value_scales(head_dim) if value == NVFP4 else _half_scales(value, head_dim, of_keys=False),
    )
    return Planes(*(Plane(p.element_bytes, p.places.to(device), p.members.to(device), p.join, p.split) for p in found))


def _nvfp4_key_codes(head_dim: int) -> Plane:
    parts, words = max(1, head_dim // 128), min(4, head_dim // 32)
    places = torch.arange(PAGE_TOKENS * head_dim // 4).view(4, parts, 16, -1).transpose(1, 2)
    dims = torch.arange(head_dim).view(parts, words, 2, 4, 2, 2)  # part, word, odd group, q, pair, half
    return _codes_of_four(places, dims.permute(0, 3, 1, 5, 2, 4))


def _nvfp4_value_codes(head_dim: int) -> Plane:
    places = torch.arange(PAGE_TOKENS * head_dim // 4).view(4, head_dim // 64, 8, 4, 2, 2, 2)
    places = places.permute(0, 4, 3, 6, 1, 2, 5)  # block, slice, g, q, hi, rh, lohi: tokens first
    dims = torch.arange(head_dim).view(head_dim // 64, 4, 2, 8)  # slice, member, rh, g
    return _codes_of_four(places, dims.permute(0, 3, 2, 1))


def _codes_of_four(places: Tensor, dims: Tensor) -> Plane:
    return Plane(2, places.reshape(PAGE_TOKENS, -1), dims.reshape(-1, 4), _join_codes, _split_codes)


def _nvfp4_key_scales(head_dim: int) -> Plane:
    return _pairs_of_scales(torch.arange(PAGE_TOKENS * head_dim // 32), head_dim)


def _nvfp4_value_scales(head_dim: int) -> Plane:
    places = torch.arange(PAGE_TOKENS * head_dim // 32).view(4, head_dim // 64, 4, 2, 2, 2)
    return _pairs_of_scales(places.permute(0, 3, 2, 5, 1, 4), head_dim)  # block, slice, q, hi, pair, lohi


def _pairs_of_scales(places: Tensor, head_dim: int) -> Plane:
    groups = torch.arange(head_dim // 16).view(-1, 2)
    return Plane(2, places.reshape(PAGE_TOKENS, -1), groups, _join_scales, _split_scales)


def _byte_key_codes(head_dim: int) -> Plane:
    return _singles(1, torch.arange(PAGE_TOKENS * head_dim).view(PAGE_TOKENS, -1))


def _byte_value_codes(head_dim: int) -> Plane:
    places = torch.arange(PAGE_TOKENS * head_dim).view(4, head_dim // 64, 2, 8, 4, 2, 2, 2, 2)
    # block, slice, half, g, q, i, hi, rh, lohi: tokens, then dimensions
    return _singles(1, places.permute(0, 6, 4, 8, 1, 2, 5, 7, 3).reshape(PAGE_TOKENS, -1))


def _half_scales(vector_format: VectorFormat, head_dim: int, *, of_keys: bool) -> Plane:
    groups = vector_format.scales(head_dim)
    places = torch.arange(PAGE_TOKENS * groups)
    return _singles(2, places.view(PAGE_TOKENS, groups) if of_keys else places.view(groups, PAGE_TOKENS).T)


def _singles(element_bytes: int, places: Tensor) -> Plane:
    members = torch.arange(places.shape[1])[:, None]
    if element_bytes == 1:
        return Plane(1, places, members, lambda one: one[..., 0], lambda element: element[..., None])
    return Plane(
        2,
        places,
        members,
        lambda one: one[..., 0].view(torch.int16),
        lambda element: element.view(torch.float16)[..., None],
    )


def _join_codes(codes: Tensor) -> Tensor:
    """Four E2M1 codes ``[..., 4]`` as an int16."""
    words = torch.zeros_like(codes[..., 0], dtype=torch.int32)
    for code, (sign, magnitude) in zip(codes.int().unbind(-1), _CODE_SHIFTS, strict=True):
        words |= (code & 7) << magnitude | (code & 8) << sign if sign >= 0 else (code & 7) << magnitude | code >> -sign
    return words.to(torch.int16)


def _split_codes(words: Tensor) -> Tensor:
    wide = words.int() & 0xFFFF
    codes = [
        (wide >> magnitude) & 7 | ((wide >> sign) & 8 if sign >= 0 else (wide << -sign) & 8)
        for sign, magnitude in _CODE_SHIFTS
    ]
    return torch.stack(codes, -1).to(torch.uint8)


def _join_scales(scales: Tensor) -> Tensor:
    """Two E4M3 words ``[..., 2]`` without a sign as an int16."""
    first, second = scales.int().unbind(-1)
    return (first & 127 | (second & 127) << 7).to(torch.int16)


def _split_scales(words: Tensor) -> Tensor:
    wide = words.int()
    return torch.stack([wide & 127, (wide >> 7) & 127], -1).to(torch.uint8)
