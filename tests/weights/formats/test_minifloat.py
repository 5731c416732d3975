"""Small floating-point formats, against torch's own types and a search for the nearest value."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninferd.weights.formats.minifloat import (
    E2M1_PAIRS,
    E2M1_VALUES,
    E4M3_VALUES,
    bf16_of_float32,
    e2m1_of_float32,
    e4m3_of_float32,
    float32_of_bf16,
)

EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, 448, 449, 464, 464.0001, 480, 1e6])


def samples(seed: int, smallest_exponent: int, largest_exponent: int) -> NDArray[np.float32]:
    """Values of random magnitude, and all ties and their neighbours up to 4 significant bits."""
    generator = np.random.default_rng(seed)
    exponents = generator.uniform(smallest_exponent, largest_exponent, 200_000)
    random = generator.choice([-1.0, 1.0], exponents.size) * 2.0**exponents
    steps = np.outer(np.arange(32) / 16, 2.0 ** np.arange(smallest_exponent, largest_exponent + 1)).ravel()
    near = np.float32(np.concatenate([EDGES, steps, -steps]))
    with np.errstate(over="ignore"):
        up, down = np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))
    return np.concatenate([random.astype(np.float32), near, up, down])


def test_e4m3_values_are_torchs() -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(E4M3_VALUES, expected)


def test_e4m3_words_are_torchs() -> None:
    values = samples(1, -14, 12)
    clipped = torch.from_numpy(np.clip(values, -448, 448))  # what torch does beyond depends on its version
    expected = clipped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(e4m3_of_float32(values)[~is_nan], expected[~is_nan])
    assert (e4m3_of_float32(values[is_nan]) == 0x7F).all()


def test_e4m3_keeps_its_words() -> None:
    words = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(e4m3_of_float32(E4M3_VALUES)[:127], words[:127])
    np.testing.assert_array_equal(e4m3_of_float32(E4M3_VALUES)[128:255], words[128:255])


def test_bf16_is_torchs() -> None:
    values = samples(2, -149, 127)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    words = bf16_of_float32(values)
    np.testing.assert_array_equal(float32_of_bf16(words), expected.float().numpy())
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(words[~is_nan], expected.view(torch.uint16).numpy()[~is_nan])


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
def test_bf16_of_nan_is_nan(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(float32_of_bf16(bf16_of_float32(value))).all()


def test_all_bf16_words_survive() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    is_nan = (words & 0x7FFF) > 0x7F80
    np.testing.assert_array_equal(bf16_of_float32(float32_of_bf16(words))[~is_nan], words[~is_nan])


def test_e2m1_values() -> None:
    assert E2M1_VALUES[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert E2M1_VALUES[8:].tolist() == [0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert np.signbit(E2M1_VALUES[8:]).all()
    assert E2M1_PAIRS[0xB4].tolist() == [2, -1.5]


def test_e2m1_codes_are_the_nearest() -> None:
    values = samples(3, -6, 5)
    values = values[~np.isnan(values)]
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 6)
    distance = np.abs(magnitude[:, None] - grid)
    # Of two equally near values the one with the even code: try the even codes first.
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    nearest = order[np.argmin(distance[:, order], axis=1)]
    np.testing.assert_array_equal(e2m1_of_float32(values), nearest + 8 * np.signbit(values))


def test_e2m1_ties() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    assert e2m1_of_float32(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1_of_float32(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]
