"""Values of stored matrices, against published digests and formulas in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.formats.packing import pack
from ninferd.weights.formats.registry import FP8_BLOCK, FP8_ROW, GROUPED, NVFP4
from ninferd.weights.formats.swizzle import swizzled
from tests.weights.formats import golden
from tests.weights.formats.files import object_bytes, stored

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(words: NDArray[np.uint8]) -> NDArray[np.float64]:
    return torch.from_numpy(words).view(torch.float8_e4m3fn).double().numpy()


def bf16(words: NDArray[np.uint16]) -> NDArray[np.float64]:
    return torch.from_numpy(words).view(torch.bfloat16).double().numpy()


def grouped_planes(format: str) -> dict[str, NDArray[Any]]:
    kind = GROUPED[format]
    codes, high = pack(golden.grouped_codes(kind.smallest, kind.largest), kind)
    planes: dict[str, NDArray[Any]] = {"codes": codes}
    if high is not None:
        planes["high"] = high
    return planes | {"scales": golden.grouped_scales(kind.group)}


def nvfp4_planes() -> dict[str, NDArray[Any]]:
    codes = golden.nvfp4_codes()
    return {"codes": codes[:, ::2] | codes[:, 1::2] << 4, "scales": swizzled(golden.nvfp4_scales())}


def assert_rows(path: Path, format: str, planes: Mapping[str, Any], expected: NDArray[Any], **others: Any) -> None:
    """All rows, and blocks of them, are the expected float32 values."""
    rows, columns = expected.shape
    matrix = stored(path / "w.bin", format, rows, columns, planes, **others)
    exact = expected.astype(np.float32)
    for begin, end in {(0, rows), (0, 1), (rows - 1, rows), (rows // 3, rows // 2 + 1)}:
        np.testing.assert_array_equal(decode_rows(matrix, begin, end), exact[begin:end], strict=True)
        wide = decode_rows(matrix, begin, end, np.float64)
        np.testing.assert_array_equal(wide, exact[begin:end].astype(np.float64), strict=True)


@pytest.mark.parametrize("format", GROUPED)
def test_golden_grouped_integers(format: str, tmp_path: Path) -> None:
    planes = grouped_planes(format)
    assert (
        golden.digest(np.frombuffer(object_bytes(format, golden.GROUPED_SHAPE, planes), np.uint8))
        == (golden.OBJECT_DIGESTS[format])
    )
    matrix = stored(tmp_path / "w.bin", format, *golden.GROUPED_SHAPE, planes)
    values = decode_rows(matrix, 0, 5)
    assert golden.digest(values) == golden.VALUE_DIGESTS[format]
    kind = GROUPED[format]
    scales = np.repeat(golden.grouped_scales(kind.group).astype(np.float64), kind.group, axis=1)[:, :200]
    assert_rows(tmp_path, format, planes, golden.grouped_codes(kind.smallest, kind.largest) * scales)


def test_golden_nvfp4(tmp_path: Path) -> None:
    planes = nvfp4_planes()
    content = object_bytes(
        NVFP4, golden.NVFP4_SHAPE, planes | {"divisors": np.array([golden.NVFP4_DIVISOR], np.float32)}
    )
    assert golden.digest(np.frombuffer(content, np.uint8)) == golden.OBJECT_DIGESTS[NVFP4]
    matrix = stored(tmp_path / "w.bin", NVFP4, 256, 128, planes, divisors=(2.5,), is_swizzled=True)
    values = decode_rows(matrix, 0, 256)
    assert golden.digest(values) == golden.VALUE_DIGESTS[NVFP4]
    assert [values[37, 70], values[200, 7], values[129, 16]] == pytest.approx([-0.0140625, -28.8, 0.03046875])


def test_golden_fp8_rows(tmp_path: Path) -> None:
    planes: dict[str, NDArray[Any]] = {"codes": golden.fp8_codes(), "scales": golden.fp8_scales()}
    content = object_bytes(FP8_ROW, golden.FP8_SHAPE, planes)
    assert golden.digest(np.frombuffer(content, np.uint8)) == golden.OBJECT_DIGESTS[FP8_ROW]
    matrix = stored(tmp_path / "w.bin", FP8_ROW, *golden.FP8_SHAPE, planes)
    assert golden.digest(decode_rows(matrix, 0, 3)) == golden.VALUE_DIGESTS[FP8_ROW]
    assert_rows(tmp_path, FP8_ROW, planes, e4m3(golden.fp8_codes()) * bf16(golden.fp8_scales())[:, None])


def nvfp4_products() -> NDArray[np.float64]:
    return E2M1[golden.nvfp4_codes()] * np.repeat(e4m3(golden.nvfp4_scales()), 16, axis=1)


# The float64 quotient of a value with 7 significant bits and a float32, rounded to float32, is the float32 quotient.
@pytest.mark.parametrize("is_swizzled", [True, False], ids=["tiles", "natural"])
def test_nvfp4_divisors(is_swizzled: bool, tmp_path: Path) -> None:
    planes = nvfp4_planes()
    if not is_swizzled:
        planes["scales"] = golden.nvfp4_scales()
    one, two = np.float32(2688 / 0.37), np.float32(0.3)
    assert_rows(tmp_path, NVFP4, planes, nvfp4_products() / float(one), divisors=(float(one),), is_swizzled=is_swizzled)
    of_rows = np.repeat([float(one), float(two)], 128)[:, None]
    expected = nvfp4_products() / of_rows
    assert_rows(tmp_path, NVFP4, planes, expected, divisors=(float(one), float(two)), is_swizzled=is_swizzled)


def test_nvfp4_factors(tmp_path: Path) -> None:
    planes = nvfp4_planes() | {"scales": golden.nvfp4_scales()}
    factor = float(np.float32(1.7e-4))
    assert_rows(tmp_path, NVFP4, planes, nvfp4_products() * factor, factors=(factor,))


@pytest.mark.parametrize("count", [1, 3], ids=["tensor", "rows"])
def test_fp8_factors(count: int, tmp_path: Path) -> None:
    factors = tuple(float(np.float32(x)) for x in (0.0123, 3.3e-5, 0.77)[:count])
    expected = e4m3(golden.fp8_codes()) * np.resize(factors, 3)[:, None]
    assert_rows(tmp_path, FP8_ROW, {"codes": golden.fp8_codes()}, expected, factors=factors)


@pytest.mark.parametrize("dtype", ["<f4", "<u2"], ids=["float32 scales", "bf16 scales"])
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 257), (300, 384)], ids=str)
def test_fp8_blocks(shape: tuple[int, int], dtype: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    rows, columns = shape
    codes = generator.integers(0, 127, shape, np.uint8) | generator.integers(0, 2, shape, np.uint8) << 7
    tiles = (-(-rows // 128), -(-columns // 128))
    scales: NDArray[Any] = generator.uniform(1e-4, 1, tiles).astype(np.float32)
    exact = scales.astype(np.float64)
    if dtype == "<u2":
        scales = (scales.view(np.uint32) >> 16).astype(np.uint16)
        exact = bf16(scales)
    expected = np.empty(shape)
    for n in range(rows):
        expected[n] = e4m3(codes[n]) * np.repeat(exact[n // 128], 128)[:columns]
    assert_rows(tmp_path, FP8_BLOCK, {"codes": codes, "scales": scales}, expected)


@pytest.mark.parametrize(("format", "dtype"), [("fp16", "<f2"), ("fp32", "<f4"), ("fp64", "<f8")])
def test_plain_values(format: str, dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(6).standard_normal((7, 5)).astype(dtype)
    matrix = stored(tmp_path / "w.bin", format, 7, 5, {"values": values})
    np.testing.assert_array_equal(decode_rows(matrix, 2, 7), values[2:].astype(np.float32), strict=True)
    np.testing.assert_array_equal(decode_rows(matrix, 2, 7, np.float64), values[2:].astype(np.float64), strict=True)


def test_plain_bf16(tmp_path: Path) -> None:
    words = np.arange(0x3F80, 0x3F8F, dtype=np.uint16).reshape(3, 5)
    assert_rows(tmp_path, "bf16", {"values": words}, 1 + np.arange(15).reshape(3, 5) / 128)


def test_ids_are_not_a_matrix(tmp_path: Path) -> None:
    matrix = stored(tmp_path / "w.bin", "int32", 4, 1, {"values": np.ones((4, 1), np.int32)})
    with pytest.raises(InputError, match="int32"):
        decode_rows(matrix, 0, 1)


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 6), (3, 3)])
def test_rows_outside(begin: int, end: int, tmp_path: Path) -> None:
    matrix = stored(tmp_path / "w.bin", "fp32", 5, 1, {"values": np.ones((5, 1), np.float32)})
    with pytest.raises(ValueError, match="of 5"):
        decode_rows(matrix, begin, end)
