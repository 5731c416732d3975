"""Values of matrices in float64, written down from the formats' formulas: as stored, and as they are on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, Matrix, Nvfp4Matrix
from ninferd.weights.stored import StoredMatrix
from tests.support.stored_matrices import E2M1, E4M3, GROUPED, bf16_values

Array = NDArray[Any]


def matrix_values(matrix: Matrix) -> Array:
    """float64 ``[N, K]`` of one matrix."""
    values: Array = _values(matrix)
    return values


def _values(matrix: Matrix) -> Any:
    if isinstance(matrix, DenseMatrix):
        return _numpy(matrix.values.double())
    if isinstance(matrix, Nvfp4Matrix):
        codes = E2M1[_fields(_numpy(matrix.codes), 4)]
        return codes * np.repeat(E4M3[_numpy(matrix.scales)], 16, 1) * _numpy(matrix.multiplier.double())[:, None]
    codes = _numpy(matrix.codes)
    if isinstance(matrix, Fp8RowMatrix):
        return E4M3[codes] * _numpy(matrix.multiplier.double())[:, None]
    if isinstance(matrix, Fp8BlockMatrix):
        scales = _numpy(matrix.scales.double())[_numpy(matrix.block_of_row)]
        return E4M3[codes] * np.repeat(scales, 128, 1)[:, : codes.shape[1]]
    low = _fields(codes, matrix.bits if matrix.high is None else 4)
    numbers = low if matrix.high is None else low | _fields(_numpy(matrix.high), matrix.bits - 4) << 4
    signed, scales = _signed(numbers, matrix.bits), _numpy(matrix.scales.double())
    return (signed * np.repeat(scales, signed.shape[1] // scales.shape[1], 1))[:, : matrix.columns]


def formula_values(stored: StoredMatrix, begin: int, end: int) -> Array:
    """float64 ``[end - begin, K]`` of rows of a stored matrix; nvfp4 is divided by its divisor, without a rounding."""
    values: Array = _stored_values(stored)[begin:end]
    return values


def _stored_values(stored: StoredMatrix) -> Any:
    planes = {name: plane.array() for name, plane in stored.planes.items()}
    if stored.format in ("bf16", "fp16", "fp32", "fp64"):
        return _numbers(planes["values"])
    codes, scales = planes["codes"], planes.get("scales")
    factors = np.asarray(stored.factors or (1.0,)).astype(np.float32).astype(np.float64)
    rows = np.repeat(factors, stored.rows // len(factors))[:, None]
    if stored.format == "nvfp4":
        assert scales is not None
        divisors = np.asarray(stored.divisors or (1.0,)).astype(np.float32).astype(np.float64)
        rows = rows / np.repeat(divisors, stored.rows // len(divisors))[:, None]
        natural = _natural(scales) if stored.is_swizzled else scales
        return E2M1[_fields(codes, 4)] * np.repeat(E4M3[natural], 16, 1) * rows
    if stored.format == "fp8_e4m3fn_row_bf16":
        return E4M3[codes] * (rows if scales is None else _numbers(scales)[:, None])
    if stored.format == "fp8_e4m3fn_block128":
        assert scales is not None
        spread = np.repeat(np.repeat(_numbers(scales), 128, 0), 128, 1)
        return E4M3[codes] * spread[: stored.rows, : stored.columns]
    assert scales is not None
    bits, group, *_ = GROUPED[stored.format]
    high = planes.get("high")
    numbers = _fields(codes, bits) if high is None else _fields(codes, 4) | _fields(high, bits - 4) << 4
    return (_signed(numbers, bits) * np.repeat(scales.astype(np.float64), group, 1))[:, : stored.columns]


def _numbers(array: Array) -> Array:
    return bf16_values(array) if array.dtype == np.uint16 else array.astype(np.float64)


def _natural(scales: Array) -> Array:
    """From the order of an artifact, offset by offset."""
    across = scales.shape[1]
    n, g = np.indices(scales.shape)
    offsets = ((n // 128) * (across // 4) + g // 4) * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4
    natural: Array = scales.reshape(-1)[offsets]
    return natural


def _signed(numbers: Array, bits: int) -> Array:
    return np.where(numbers >= 1 << bits - 1, numbers - (1 << bits), numbers)


def _fields(packed: Array, bits: int) -> Any:
    """Bit fields of bytes, the lowest first."""
    stream = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits).astype(np.int64)
    return (stream << np.arange(bits)).sum(2)


def _numpy(tensor: torch.Tensor) -> Array:
    array: Array = tensor.cpu().numpy()
    return array
