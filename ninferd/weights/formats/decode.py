"""Values of stored matrices, exactly as their formats define them, by blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats import registry
from ninferd.weights.formats.minifloat import E2M1_PAIRS, E4M3_VALUES, float32_of_bf16
from ninferd.weights.formats.packing import unpack
from ninferd.weights.formats.swizzle import tile_rows, unswizzled
from ninferd.weights.stored import Plane, StoredMatrix


def decode_rows(matrix: StoredMatrix, begin: int, end: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Values ``[end - begin, K]`` as float32 or float64.

    Products and the one division by the divisor are rounded to float32 as the formats define, also when float64 is
    asked for; only plain fp64 values are finer than that. Maps the planes; InputError as :meth:`Plane.array`.
    """
    if not 0 <= begin < end <= matrix.rows:
        raise ValueError(f"{matrix.name}: rows {begin} to {end} of {matrix.rows}")
    planes = {name: _rows(plane, begin, end) for name, plane in matrix.planes.items() if plane.shape[0] == matrix.rows}
    if matrix.is_swizzled:
        planes["scales"] = _unswizzled(matrix.planes["scales"], begin, end)
    if matrix.format == registry.FP8_BLOCK:
        values = _fp8_blocks(planes["codes"], matrix.planes["scales"].array(), begin)
    else:
        values = decode_planes(matrix.format, matrix.columns, planes)
    if matrix.divisors:
        values = values / _of_rows(matrix, matrix.divisors, begin, end)
    if matrix.factors:
        values = values * _of_rows(matrix, matrix.factors, begin, end)
    return values.astype(dtype, copy=False)


def decode_planes(format: str, columns: int, planes: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Values ``[R, K]`` of R rows of a format whose scales belong to rows, before any divisor or factor.

    ``planes`` are those of :class:`StoredMatrix` cut to the rows, nvfp4's scales in natural order; float32, but float64
    for fp64.
    """
    if format in registry.GROUPED:
        codes = unpack(planes["codes"], planes.get("high"), registry.GROUPED[format]).astype(np.float32)
        return _scaled(codes, planes["scales"].astype(np.float32))[:, :columns]
    if format == registry.NVFP4:
        return _scaled(E2M1_PAIRS[planes["codes"]].reshape(-1, columns), E4M3_VALUES[planes["scales"]])
    if format == registry.FP8_ROW:
        plain: NDArray[np.float32] = E4M3_VALUES[planes["codes"]]
        return _scaled(plain, float32_of_bf16(planes["scales"])[:, None]) if "scales" in planes else plain
    if format == registry.BF16:
        return float32_of_bf16(planes["values"])
    if format == registry.FP64:
        return planes["values"]
    if format in (registry.FP16, registry.FP32):
        return planes["values"].astype(np.float32, copy=False)
    raise InputError(f"format {format!r} has no values by rows")


def _scaled(codes: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Codes ``[R, K]`` by the scales ``[R, groups]`` of equal groups of columns."""
    groups = codes.reshape(*scales.shape, -1)
    product: NDArray[np.float32] = groups * scales[:, :, None]
    return product.reshape(codes.shape)


def _rows(plane: Plane, begin: int, end: int) -> NDArray[Any]:
    row_bytes = plane.size_bytes // plane.shape[0]
    spans = plane.part(begin * row_bytes, end * row_bytes)
    return Plane(plane.dtype, (end - begin, *plane.shape[1:]), spans).array()


def _unswizzled(plane: Plane, begin: int, end: int) -> NDArray[np.uint8]:
    first, last = tile_rows(begin, end)
    return unswizzled(_rows(plane, first, last))[begin - first : end - first]


def _fp8_blocks(codes: NDArray[np.uint8], scales: NDArray[Any], begin: int) -> NDArray[Any]:
    size = registry.FP8_BLOCK_SIZE
    tiles = scales[np.arange(begin, begin + len(codes)) // size]
    tiles = float32_of_bf16(tiles) if tiles.dtype == np.uint16 else tiles.astype(np.float32, copy=False)
    values: NDArray[np.float32] = E4M3_VALUES[codes] * np.repeat(tiles, size, axis=1)[:, : codes.shape[1]]
    return values


def _of_rows(matrix: StoredMatrix, numbers: tuple[float, ...], begin: int, end: int) -> NDArray[np.float32]:
    """The number of each row ``[end - begin, 1]``: one for all, or one for each of equal row blocks."""
    if matrix.rows % len(numbers):
        raise ValueError(f"{matrix.name}: {len(numbers)} numbers do not belong to {matrix.rows} rows")
    rows = np.arange(begin, end) // (matrix.rows // len(numbers))
    of_rows: NDArray[np.float32] = np.asarray(numbers, np.float32)[rows, None]
    return of_rows
