"""Codes and scales: the golden vectors of spec/memory §1.5, a scalar encoder, and errors on normal numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels_numba.kv.codec import FP8, INT8, KV_CODECS, NVFP4, VectorFormat
from kernels_numba.kv.encode import decode, encode, encode_keys, encode_values
from kernels_numba.kv.hadamard import hadamard
from tests.kernels_numba.kv import scalar

Formula = Callable[[Any], tuple[list[int], list[Any]]]
FORMATS: dict[str, tuple[VectorFormat, Formula]] = {
    "nvfp4": (NVFP4, scalar.nvfp4),
    "fp8": (FP8, scalar.fp8),
    "int8": (INT8, scalar.int8),
}
DOWN = [6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25]
GOLDEN: list[tuple[list[float], int, list[int]]] = [
    (list(range(-8, 8)), 0x3B, [15, 15, 14, 14, 13, 12, 11, 9, 0, 1, 3, 4, 5, 6, 6, 7]),
    ([*DOWN, *(-x for x in DOWN)], 0x38, [7, 6, 6, 4, 4, 2, 2, 0, 15, 14, 14, 12, 12, 10, 10, 8]),
    ([0.0] * 16, 0x00, [0] * 16),
    ([0.0058] * 16, 0x00, [0] * 16),
    ([0.00586] * 16, 0x01, [5] * 16),
    ([3000.0] + [1.0] * 15, 0x7E, [7] + [0] * 15),
]


@pytest.mark.parametrize(("group", "scale", "codes"), GOLDEN, ids=lambda value: str(value)[:24])
def test_golden_vectors(group: list[float], scale: int, codes: list[int]) -> None:
    found, scales = encode(NVFP4, torch.tensor(group))
    assert (scales.tolist(), found.tolist()) == ([scale], codes)


def _vectors() -> Tensor:
    """Ordinary vectors, and such as overflow and underflow scales and codes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 128, generator=generator)
    x[20:40] *= torch.logspace(-8, 8, 20)[:, None]
    x[40] = 0
    x[41] = -0.0
    x[42:60] *= torch.exp(3 * torch.randn(18, 128, generator=generator))
    return x.bfloat16().float()


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_those_of_the_scalar_encoder(name: str) -> None:
    vector_format, formula = FORMATS[name]
    codes, scales = encode(vector_format, _vectors())
    for row, vector in enumerate(_vectors().numpy()):
        expected, expected_scales = formula(vector)
        assert codes[row].tolist() == expected
        assert scales[row].tolist() == expected_scales


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_multiplies_codes_and_scales(name: str) -> None:
    vector_format, formula = FORMATS[name]
    decoded = decode(vector_format, *encode(vector_format, _vectors()))
    values: Callable[[int], float] = {
        "nvfp4": lambda code: (scalar.E2M1[code & 7], -scalar.E2M1[code & 7])[code >> 3],
        "fp8": lambda code: (scalar.E4M3[code & 127], -scalar.E4M3[code & 127])[code >> 7],
        "int8": lambda code: float((code + 128) % 256 - 128),
    }[name]
    for row, vector in enumerate(_vectors().numpy()):
        codes, scales = formula(vector)
        factors: Any = [scalar.E4M3[int(word)] for word in scales] if name == "nvfp4" else scales
        products = np.array([values(code) for code in codes]).reshape(len(factors), -1) * np.array(factors)[:, None]
        np.testing.assert_array_equal(decoded[row].double().numpy(), products.flatten())


@pytest.mark.parametrize(("vector_format", "error"), [(NVFP4, 0.0954), (INT8, 0.0060), (FP8, 0.0261)])
def test_error_on_normal_numbers(vector_format: VectorFormat, error: float) -> None:
    x = torch.randn(400, 256, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    found = float((decode(vector_format, *encode(vector_format, x)) - x).norm() / x.norm())
    assert abs(found / error - 1) < 0.05


def test_what_is_stored_is_rounded_to_bfloat16_first() -> None:
    x = torch.randn(50, 256, generator=torch.Generator().manual_seed(2))
    for codec in KV_CODECS.values():
        if codec.is_plain:
            continue
        for found, expected in zip(encode_values(codec, x), encode(codec.value, x.bfloat16()), strict=True):
            assert torch.equal(found, expected)
        assert not torch.equal(encode_values(codec, x)[0], encode(codec.value, x)[0])
        turned = hadamard(x).bfloat16()
        for found, expected in zip(encode_keys(codec, x), encode(codec.key, turned), strict=True):
            assert torch.equal(found, expected)
        assert not torch.equal(encode_keys(codec, x)[0], encode(codec.key, hadamard(x))[0])


@pytest.mark.parametrize("vector_format", [NVFP4, FP8, INT8], ids=lambda each: each.name)
def test_what_is_not_finite_is_stored_as_finite_numbers(vector_format: VectorFormat) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    x[0, 5], x[1, 6], x[2, 7], x[3] = torch.nan, torch.inf, -torch.inf, torch.nan
    counted = x.clone()
    largest = torch.finfo(torch.bfloat16).max
    counted[0, 5], counted[1, 6], counted[2, 7], counted[3] = 0, largest, -largest, 0
    for found, expected in zip(encode(vector_format, x), encode(vector_format, counted), strict=True):
        assert torch.equal(found, expected)
    decoded = decode(vector_format, *encode(vector_format, x))
    assert decoded.isfinite().all()
    assert decoded[1, 6] > 0 > decoded[2, 7]
    assert not decoded[3].any()


@pytest.mark.parametrize("vector_format", [NVFP4, FP8], ids=lambda each: each.name)
def test_no_word_is_a_nan(vector_format: VectorFormat) -> None:
    x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(4)) * 2.0 ** torch.arange(-100, 100)[
        :, None
    ].repeat(10, 1)
    codes, scales = encode(vector_format, x)
    words = scales if vector_format == NVFP4 else codes
    assert not ((words & 0x7F) == 0x7F).any()
    assert decode(vector_format, codes, scales).isfinite().all()


@pytest.mark.parametrize("vector_format", [NVFP4, FP8, INT8], ids=lambda each: each.name)
def test_zero_bytes_are_zeros(vector_format: VectorFormat) -> None:
    scale_type = torch.uint8 if vector_format == NVFP4 else torch.float16
    scales = torch.zeros(3, vector_format.scales(64), dtype=scale_type)
    assert not decode(vector_format, torch.zeros(3, 64, dtype=torch.uint8), scales).any()
