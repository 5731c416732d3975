"""Values of matrices on a device, in float64, as ``kernels_numba.matrices`` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, Matrix, Nvfp4Matrix
from tests.support.stored_matrices import E2M1, E4M3

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
    signed = np.where(numbers >= 1 << matrix.bits - 1, numbers - (1 << matrix.bits), numbers)
    scales = _numpy(matrix.scales.double())
    return (signed * np.repeat(scales, signed.shape[1] // scales.shape[1], 1))[:, : matrix.columns]


def _fields(packed: Array, bits: int) -> Any:
    """Bit fields of bytes, the lowest first."""
    stream = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits).astype(np.int64)
    return (stream << np.arange(bits)).sum(2)


def _numpy(tensor: torch.Tensor) -> Array:
    array: Array = tensor.cpu().numpy()
    return array
