"""What every quantiser is compared with the reference on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.formats.encoders import ENCODED, Encoders, Nvfp4Method, encode_rows, nvfp4_divisor
from ninferd.weights.formats.registry import GROUPED, NVFP4
from tests.weights.formats.weights import WEIGHTS, bf16_words, gaussian

REFERENCE = NumpyEncoders()
METHODS: tuple[Nvfp4Method, ...] = ("max_abs", "max_abs_lifted", "least_error")
CASES = [
    pytest.param(format, method, id=f"{format} {method}" if format == NVFP4 else format)
    for format in ENCODED
    for method in (METHODS if format == NVFP4 else METHODS[:1])
]
SHAPES = [(128, 64), (128, 256), (128, 200), (128, 1)]


def assert_equals_the_reference(
    encoders: Encoders, format: str, method: Nvfp4Method, weights: str, shape: tuple[int, int], is_bf16: bool
) -> None:
    """Bit for bit, on rows that may only be read, like those of a mapped file."""
    if format == NVFP4 and shape[1] % 64:
        shape = (shape[0], 320)
    values: NDArray[Any] = WEIGHTS[weights](*shape)
    if is_bf16:
        values = bf16_words(values)
    values.setflags(write=False)
    largest = encoders.largest(values)
    assert largest == REFERENCE.largest(values)
    divisor = nvfp4_divisor(largest)
    planes = encode_rows(values, format, encoders, divisor=divisor, method=method)
    expected = encode_rows(values, format, REFERENCE, divisor=divisor, method=method)
    assert planes.keys() == expected.keys()
    for name, plane in planes.items():
        assert plane.dtype == expected[name].dtype
        np.testing.assert_array_equal(_bits(plane), _bits(expected[name]), strict=True)


def assert_breaks_ties_the_same(encoders: Encoders) -> None:
    """Multiples of a small power of two, half of them zero: of many blocks several scales are equally good."""
    generator = np.random.default_rng(13)
    steps = generator.integers(0, 48, (512, 1024)) * generator.integers(0, 2, (512, 1024))
    values = (steps * 2.0**-10).astype(np.float32)
    codes, scales = encoders.nvfp4(values, 1.0, "least_error")
    expected_codes, expected_scales = REFERENCE.nvfp4(values, 1.0, "least_error")
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(codes, expected_codes)


def assert_refuses_the_same(encoders: Encoders, bad: float, is_bf16: bool) -> None:
    values = gaussian(128, 128)
    values[77, 100] = values[90, 3] = bad
    rows: NDArray[Any] = bf16_words(values) if is_bf16 else values
    assert not np.isfinite(encoders.largest(rows))
    for format in ENCODED[2:]:
        with pytest.raises(InputError) as found:
            encode_rows(rows, format, encoders)
        with pytest.raises(InputError) as expected:
            encode_rows(rows, format, REFERENCE)
        assert str(found.value) == str(expected.value)


def assert_has_the_same_limits(encoders: Encoders) -> None:
    for kind in GROUPED.values():
        values = gaussian(3, 128)
        values[1, 5] = -65504 * kind.largest
        np.testing.assert_array_equal(encoders.grouped(values, kind.bits)[2], REFERENCE.grouped(values, kind.bits)[2])
        values[1, 5] = np.nextafter(values[1, 5], np.float32(-np.inf))
        with pytest.raises(InputError, match="row 1 of the block"):
            encoders.grouped(values, kind.bits)
    values = gaussian(3, 128)
    values[2, 5] = np.finfo(np.float32).max  # its bfloat16 is infinite
    with pytest.raises(InputError, match="row 2 of the block"):
        encoders.fp8_rows(values)
    with pytest.raises(TypeError, match="float64"):
        encoders.fp8_rows(values.astype(np.float64))


def _bits(plane: NDArray[Any]) -> NDArray[Any]:
    """Comparable also where values are NaN or the negative zero."""
    return plane.view(f"u{plane.dtype.itemsize}")
