"""The reference encoders, against their rules written out number by number."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.decode import decode_planes, decode_rows
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.formats.encoders import ENCODED, Nvfp4Method, encode_rows, nvfp4_divisor
from ninferd.weights.formats.packing import unpack
from ninferd.weights.formats.registry import FP8_ROW, GROUPED, NVFP4, plane_layout
from tests.weights.formats.files import stored
from tests.weights.formats.weights import WEIGHTS, bf16_words, gaussian, heavy_tailed

ENCODERS = NumpyEncoders()
SHAPES = [(12, 64), (12, 200), (16, 256)]
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def half_even(x: float) -> int:
    return round(Fraction(x))


def e4m3_word(x: float) -> int:
    return int(torch.tensor(x, dtype=torch.float32).to(torch.float8_e4m3fn).view(torch.uint8))


def e4m3_value(word: int) -> float:
    return float(torch.tensor(word, dtype=torch.uint8).view(torch.float8_e4m3fn))


def bf16_word(x: float) -> int:
    return int(torch.tensor(x, dtype=torch.float32).bfloat16().view(torch.uint16))


def bf16_value(word: int) -> float:
    return float(torch.tensor(word, dtype=torch.uint16).view(torch.bfloat16))


def f32(x: float) -> float:
    return float(np.float32(x))


def e2m1_code(x: float) -> int:
    m = abs(x)
    code = sum([m > 0.25, m >= 0.75, m > 1.25, m >= 1.75, m > 2.5, m >= 3.5, m > 5])
    return code + (8 if np.signbit(x) else 0)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", GROUPED)
def test_grouped_integers(format: str, shape: tuple[int, int], weights: str) -> None:
    kind = GROUPED[format]
    values = WEIGHTS[weights](*shape)
    codes, high, scales = ENCODERS.grouped(values, kind.bits)
    lanes = unpack(codes, high, kind)
    rows, columns = shape
    padded = np.pad(values, ((0, 0), (0, lanes.shape[1] - columns)))
    assert scales.shape == (rows, kind.groups(columns))
    for r in range(rows):
        for t in range(scales.shape[1]):
            x = padded[r, t * kind.group : (t + 1) * kind.group].tolist()
            a = max(abs(v) for v in x)
            s = float(np.float16(np.float32(a / kind.largest)))
            if s == 0 and a > 0:
                s = 2.0**-24
            inverse = f32(1 / s) if s else 0
            q = [min(max(half_even(f32(v * inverse)), kind.smallest), kind.largest) for v in x]
            assert float(scales[r, t]) == s
            assert lanes[r, t * kind.group : (t + 1) * kind.group].tolist() == q


@pytest.mark.parametrize("method", ["max_abs", "max_abs_lifted"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_nvfp4(weights: str, method: Nvfp4Method) -> None:
    values = WEIGHTS[weights](16, 128)
    d = nvfp4_divisor(float(np.abs(values).max()))
    codes, scales = ENCODERS.nvfp4(values, d, method)
    lanes = np.stack([codes & 15, codes >> 4], axis=2).reshape(values.shape)
    lifted = 0
    for r in range(16):
        for g in range(8):
            y = [f32(v * d) for v in values[r, 16 * g : 16 * g + 16].tolist()]
            word = e4m3_word(min(f32(max(abs(v) for v in y) / 6), 448))
            if method == "max_abs_lifted" and word == 0 and any(y):
                word, lifted = 1, lifted + 1
            s = e4m3_value(word)
            assert scales[r, g] == word
            assert lanes[r, 16 * g : 16 * g + 16].tolist() == [e2m1_code(f32(v / s)) if s else 0 for v in y]
    assert (lifted > 0) == (weights == "edges" and method == "max_abs_lifted")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shape", [(12, 130), (16, 64)], ids=str)
def test_fp8_rows(shape: tuple[int, int], weights: str) -> None:
    values = WEIGHTS[weights](*shape)
    codes, scales = ENCODERS.fp8_rows(values)
    for r in range(shape[0]):
        x = [bf16_value(bf16_word(v)) for v in values[r].tolist()]
        a = max(abs(v) for v in x)
        word = bf16_word(f32(a / 448))
        if word == 0 and a > 0:
            word = 1
        s = bf16_value(word)
        inverse = min(f32(min(1 / s, LARGEST_FLOAT32)), LARGEST_FLOAT32) if s else 0
        expected = [e4m3_word(min(max(f32(v * inverse), -448), 448)) for v in x]
        assert scales[r] == word
        assert codes[r].tolist() == expected
    assert not (codes & 0x7F == 0x7F).any()


@pytest.mark.parametrize("format", [*GROUPED, FP8_ROW, NVFP4])
def test_bfloat16_words_are_their_values(format: str) -> None:
    words = bf16_words(gaussian(128, 128))
    values = torch.from_numpy(words).view(torch.bfloat16).float().numpy()
    d = nvfp4_divisor(ENCODERS.largest(words))
    assert ENCODERS.largest(words) == ENCODERS.largest(values) == float(np.abs(values).max())
    from_words = encode_rows(words, format, ENCODERS, divisor=d)
    from_values = encode_rows(values, format, ENCODERS, divisor=d)
    for name, plane in from_values.items():
        np.testing.assert_array_equal(from_words[name], plane, strict=True)


def block_errors(values: NDArray[np.float32], divisor: float, method: Nvfp4Method) -> NDArray[np.float64]:
    """Squared error of each block of 16, in float64."""
    codes, scales = ENCODERS.nvfp4(values, divisor, method)
    decoded = decode_planes(NVFP4, values.shape[1], {"codes": codes, "scales": scales}) / np.float32(divisor)
    difference: NDArray[np.float64] = decoded.astype(np.float64) - values
    errors: NDArray[np.float64] = (difference**2).reshape(len(values), -1, 16).sum(axis=2)
    return errors


@pytest.mark.parametrize(("weights", "at_most"), [("gaussian", 0.76), ("heavy tails", 0.9), ("edges", 1.0)])
def test_the_least_error_of_nvfp4(weights: str, at_most: float) -> None:
    values = WEIGHTS[weights](128, 512)
    d = nvfp4_divisor(float(np.abs(values).max()))
    usual, least = (block_errors(values, d, method) for method in ("max_abs", "least_error"))
    assert (least <= usual * (1 + 1e-6)).all()
    assert least.sum() <= at_most * usual.sum()
    # And no scale word at all would do better, in nearly every block.
    y = (values.astype(np.float64) * d).reshape(-1, 16)
    best = np.full(len(y), np.inf)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for word in range(1, 0x7F):
        s = e4m3_value(word)
        nearest = np.abs(np.abs(y)[:, :, None] / s - grid).min(axis=2) * s
        best = np.minimum(best, (nearest**2).sum(axis=1))
    found = least.ravel() * float(d) ** 2
    assert (found <= best * (1 + 1e-4) + 1e-12).mean() > 0.99


@pytest.mark.parametrize("format", ENCODED)
@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])
def test_pieces_fit_their_planes(format: str, is_bf16: bool, tmp_path: Path) -> None:
    """Pieces of 128 rows, one after the other, are the planes of the matrix, and hold its values."""
    values = gaussian(256, 128)
    rows: NDArray[Any] = bf16_words(values) if is_bf16 else values
    if is_bf16:
        values = torch.from_numpy(rows).view(torch.bfloat16).float().numpy()
    d = nvfp4_divisor(float(np.abs(values).max()))
    pieces = [encode_rows(rows[r : r + 128], format, ENCODERS, divisor=d) for r in (0, 128)]
    planes = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    for spec in plane_layout(format, (256, 128)):
        if spec.name != "divisors":
            assert planes[spec.name].shape == spec.shape
            assert planes[spec.name].dtype == np.dtype(spec.dtype)
    others = {"divisors": (d,), "is_swizzled": True} if format == NVFP4 else {}
    decoded = decode_rows(stored(tmp_path / "w.bin", format, 256, 128, planes, **others), 0, 256)
    step = {"bf16": 2.0**-8, "fp32": 0, FP8_ROW: 2.0**-4, NVFP4: 1 / 6}.get(format)
    if step is None:
        step = 1.0 if format.startswith("t2") else 0.51 / GROUPED[format].largest
    if format in ("bf16", "fp32", FP8_ROW):
        assert (np.abs(decoded - values) <= step * np.abs(values) + 1e-4).all()
    else:
        width = 16 if format == NVFP4 else GROUPED[format].group
        largest = np.abs(values).reshape(256, -1, width).max(axis=2).repeat(width, axis=1)
        assert (np.abs(decoded - values) <= step * largest * 1.1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("format", [*GROUPED, FP8_ROW, NVFP4])
def test_what_is_not_finite_is_refused(format: str, is_bf16: bool, bad: float) -> None:
    values = gaussian(128, 128)
    values[77, 100] = bad
    rows: NDArray[Any] = bf16_words(values) if is_bf16 else values
    with pytest.raises(InputError, match="row 77 of the block"):
        encode_rows(rows, format, ENCODERS)
    assert not np.isfinite(ENCODERS.largest(rows))
    with pytest.raises(InputError, match="not finite"):
        nvfp4_divisor(ENCODERS.largest(rows))


@pytest.mark.parametrize("format", GROUPED)
def test_what_an_fp16_scale_does_not_reach_is_refused(format: str) -> None:
    limit = np.float32(65504 * GROUPED[format].largest)
    values = gaussian(3, 128)
    values[1, 5] = -limit
    scales = ENCODERS.grouped(values, GROUPED[format].bits)[2]
    assert scales.max() == 65504
    values[1, 5] = np.nextafter(limit, np.float32(np.inf))
    with pytest.raises(InputError, match="row 1 of the block"):
        ENCODERS.grouped(values, GROUPED[format].bits)


def test_what_bf16_does_not_reach_is_refused() -> None:
    values = gaussian(3, 128)
    values[2, 5] = LARGEST_FLOAT32  # rounds to infinity
    with pytest.raises(InputError, match="row 2 of the block"):
        ENCODERS.fp8_rows(values)


def test_divisors() -> None:
    assert nvfp4_divisor(0) == 1
    assert nvfp4_divisor(2688) == 1
    assert nvfp4_divisor(f32(0.3)) == f32(2688 / f32(0.3))
    assert nvfp4_divisor(1e-45) == LARGEST_FLOAT32


@pytest.mark.parametrize("format", ["int32", "fp16", "q3"])
def test_other_formats_are_refused(format: str) -> None:
    with pytest.raises(InputError, match=format):
        encode_rows(gaussian(1, 128), format, ENCODERS)


def test_other_dtypes_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="float64"):
        ENCODERS.fp8_rows(gaussian(1, 128).astype(np.float64))


def test_heavy_tails_are_heavy() -> None:
    values = heavy_tailed(64, 256).astype(np.float64)
    assert (values**4).mean() / (values**2).mean() ** 2 > 30
