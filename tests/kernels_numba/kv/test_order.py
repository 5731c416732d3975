"""Stored orders: nothing lost, nothing doubled, and equal to the layout written out a bit at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.order import Plane, planes
from tests.kernels_numba.kv import scalar

CPU = torch.device("cpu")
Scalar = Callable[[scalar.Codes], scalar.Run]
PARTS: dict[str, tuple[Scalar, Scalar, Scalar, Scalar]] = {
    "nvfp4": (
        scalar.nvfp4_key_codes,
        scalar.nvfp4_key_scales,
        scalar.nvfp4_value_codes,
        scalar.nvfp4_value_scales,
    ),
    "fp8": (scalar.byte_key_codes, scalar.half_key_scales, scalar.byte_value_codes, scalar.half_value_scales),
    "int8": (scalar.byte_key_codes, scalar.half_key_scales, scalar.byte_value_codes, scalar.half_value_scales),
    "k8v4": (scalar.byte_key_codes, scalar.half_key_scales, scalar.nvfp4_value_codes, scalar.nvfp4_value_scales),
}
NAMES = ("key_codes", "key_scales", "value_codes", "value_scales")
CASES = [(codec, head_dim, part) for codec in PARTS for head_dim in (64, 128, 256) for part in NAMES]


def _layout(codec: str, head_dim: int) -> KvLayout:
    return KvLayout(KV_CODECS[codec], 1, 1, head_dim)


def _plane(codec: str, head_dim: int, part: str) -> Plane:
    plane: Plane = getattr(planes(_layout(codec, head_dim), CPU), part)
    return plane


def _size_bytes(codec: str, head_dim: int, part: str) -> int:
    layout = _layout(codec, head_dim)
    offsets = [0, layout.key_scales_offset, layout.value_codes_offset, layout.value_scales_offset, layout.head_bytes]
    index = NAMES.index(part)
    return offsets[index + 1] - offsets[index]


def _limit(codec: str, part: str) -> int:
    vector_format = getattr(KV_CODECS[codec], part.split("_")[0])
    if part.endswith("codes"):
        return 1 << int(vector_format.code_bits)
    return 127 if vector_format.scale_bytes == 1 else 0x7C00


@pytest.mark.parametrize(("codec", "head_dim", "part"), CASES)
def test_every_element_has_a_place_of_its_own(codec: str, head_dim: int, part: str) -> None:
    plane = _plane(codec, head_dim, part)
    elements = _size_bytes(codec, head_dim, part) // plane.element_bytes
    assert sorted(plane.places.flatten().tolist()) == list(range(elements))
    vector = plane.members.numel()
    assert sorted(plane.members.flatten().tolist()) == list(range(vector))


@pytest.mark.parametrize(("codec", "head_dim", "part"), CASES)
def test_order_is_that_of_the_layout(codec: str, head_dim: int, part: str) -> None:
    plane, limit = _plane(codec, head_dim, part), _limit(codec, part)
    words = np.random.default_rng(0).integers(limit, size=(PAGE_TOKENS, plane.members.numel()))
    expected = PARTS[codec][NAMES.index(part)](words)
    assert expected.written.max() == 1, "the formula itself writes no bit twice"
    natural = torch.from_numpy(words)
    typed = natural.to(torch.uint8) if limit <= 256 else natural.to(torch.int16).view(torch.float16)
    stored = torch.zeros(plane.places.numel(), dtype=torch.uint8 if plane.element_bytes == 1 else torch.int16)
    stored[plane.places] = plane.elements(typed)
    assert bytes(stored.view(torch.uint8).tolist()) == bytes(expected.data)
    assert torch.equal(plane.vectors(stored), typed)


def test_all_parts_are_looked_at() -> None:
    assert tuple(field.name for field in fields(planes(_layout("nvfp4", 64), CPU))) == NAMES
