"""Pools of quantised rows: turning the bytes turns the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninferd.weights.formats.decode import decode_planes
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.formats.encoders import ENCODED
from ninferd.weights.formats.registry import FP32, NVFP4
from ninferd.weights.formats.swizzle import unswizzled
from ninferd.weights.synthesis import pool as pools
from ninferd.weights.synthesis.pool import PoolKey, RowPool, make_pool, pool_rows

FORMATS = [format for format in ENCODED if format != FP32]


def pool_of(format: str, rows: int, columns: int, sigma: float = 0.02, seed: int = 0) -> RowPool:
    return make_pool(PoolKey(format, columns, sigma), rows, NumpyEncoders(), seed)


def values(format: str, columns: int, planes: dict[str, NDArray[Any]]) -> NDArray[Any]:
    if format == NVFP4:
        planes = planes | {"scales": unswizzled(planes["scales"])}
    return decode_planes(format, columns, planes)


@pytest.mark.parametrize("columns", [512, 320], ids=lambda columns: f"{columns} columns")
@pytest.mark.parametrize("format", FORMATS)
def test_turns(format: str, columns: int) -> None:
    pool = pool_of(format, 384, columns)
    plain = values(format, columns, dict(pool.planes))
    assert pool.turns == (3, columns // 128 if columns % 128 == 0 else 1)
    for down in range(pool.turns[0]):
        for across in range(pool.turns[1]):
            turned = values(format, columns, pool.turned(down, across))
            if format.startswith("fp8"):  # scales belong to whole rows
                assert np.isfinite(turned).all()
            np.testing.assert_array_equal(turned, np.roll(plain, (128 * down, 128 * across), (0, 1)))


@pytest.mark.parametrize("format", FORMATS)
def test_values_are_gaussian(format: str) -> None:
    sigma = 0.037
    pool = pool_of(format, 512, 1024, sigma)
    found = values(format, 1024, dict(pool.planes)).astype(np.float64) / pool.divisor
    assert abs(found.mean()) < 0.01 * sigma
    if format.startswith("t2"):  # a group has few values other than 0
        assert set(np.unique(np.sign(found))) == {-1, 0, 1}
        return
    assert found.std() == pytest.approx(sigma, rel=0.02)
    assert (found**4).mean() / found.var() ** 2 == pytest.approx(3, abs=0.15)
    assert np.abs(found).max() > 4.5 * sigma


def test_pools_depend_on_all_their_arguments() -> None:
    first = pool_of("q8_g32_fp16", 128, 256)
    assert np.array_equal(first.planes["codes"], pool_of("q8_g32_fp16", 128, 256).planes["codes"])
    for other in (pool_of("q8_g32_fp16", 128, 256, seed=1), pool_of("q8_g32_fp16", 128, 256, sigma=0.03)):
        assert not np.array_equal(first.planes["codes"], other.planes["codes"])


@pytest.mark.parametrize(
    ("columns", "most_rows", "rows"), [(5120, 248320, 1536), (5120, 100, 128), (2048, 200, 256), (1 << 26, 999, 128)]
)
def test_rows_of_pools(columns: int, most_rows: int, rows: int) -> None:
    assert pools.POOL_ELEMENTS == 8 << 20
    assert pool_rows(columns, most_rows) == rows
