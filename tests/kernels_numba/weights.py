"""Random weight matrices of every kind, and their values in float64 by formulas of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
E4M3_NAN = (0x7F, 0xFF)
LARGEST_E4M3 = 0x7E


class RandomMatrices:
    """Matrices ``[*stack, rows, columns]`` from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def _integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator)

    def _bytes(self, *shape: int) -> Tensor:
        return self._integers(0, 256, *shape).to(torch.uint8)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator)

    def _e4m3(self, *shape: int) -> Tensor:
        """All words but NaN."""
        words = self._bytes(*shape)
        return torch.where((words & 0x7F) == 0x7F, 0, words)

    def _multiplier(self, *shape: int) -> Tensor:
        return self._normal(*shape).abs() + 0.1

    def float32(self, *shape: int) -> DenseMatrix:
        return DenseMatrix(self._normal(*shape))

    def bfloat16(self, *shape: int) -> DenseMatrix:
        return DenseMatrix(self._normal(*shape).bfloat16())

    def nvfp4(self, *shape: int) -> Nvfp4Matrix:
        *stack, rows, columns = shape
        scales = self._integers(0x28, 0x48, *stack, rows, columns // 16).to(torch.uint8)
        return Nvfp4Matrix(self._bytes(*stack, rows, columns // 2), scales, self._multiplier(*stack, rows))

    def fp8_row(self, *shape: int) -> Fp8RowMatrix:
        return Fp8RowMatrix(self._e4m3(*shape), self._multiplier(*shape[:-1]) / 100)

    def fp8_block(self, *shape: int) -> Fp8BlockMatrix:
        """The rows take their scales from three more block rows than tiles of 128 rows would need, in any order."""
        *stack, rows, columns = shape
        blocks = -(-rows // 128) + 3
        scales = self._multiplier(*stack, blocks, -(-columns // 128)) / 100
        return Fp8BlockMatrix(self._e4m3(*shape), scales, self._integers(0, blocks, *stack, rows).int())

    def grouped(self, bits: int) -> Callable[..., GroupedMatrix]:
        def matrix(*shape: int) -> GroupedMatrix:
            *stack, rows, columns = shape
            group_columns, high_bytes = {2: (128, 0), 4: (64, 0), 5: (64, 8), 6: (64, 16), 8: (32, 0)}[bits]
            groups = -(-columns // 128) * 128 // group_columns
            codes = self._bytes(*stack, rows, groups * 32)
            high = self._bytes(*stack, rows, groups * high_bytes) if high_bytes else None
            scales = (self._normal(*stack, rows, groups) / 2**bits).half()  # of either sign
            return GroupedMatrix(bits, columns, codes, high, scales)

        return matrix

    def by_name(self, kind: str) -> Callable[..., Matrix]:
        """``matrix(*shape)`` of a kind of ``KINDS``."""
        if kind[0] in "qt":
            return self.grouped(int(kind[1:]))
        factory: Callable[..., Matrix] = getattr(self, kind)
        return factory


KINDS = ("float32", "bfloat16", "nvfp4", "fp8_row", "fp8_block", "t2", "q4", "q5", "q6", "q8")


def values(matrix: Matrix) -> Tensor:
    """Float64 ``[N, K]`` of one matrix, by the formulas of the artifact format."""
    match matrix:
        case DenseMatrix():
            return matrix.values.double()
        case Nvfp4Matrix():
            codes = torch.stack([matrix.codes & 15, matrix.codes >> 4], -1).flatten(-2)
            scales = _e4m3(matrix.scales).repeat_interleave(16, -1)
            return E2M1[codes.long()] * scales * matrix.multiplier.double()[:, None]
        case Fp8RowMatrix():
            return _e4m3(matrix.codes) * matrix.multiplier.double()[:, None]
        case Fp8BlockMatrix():
            scales = matrix.scales.double()[matrix.block_of_row.long()].repeat_interleave(128, -1)
            return _e4m3(matrix.codes) * scales[:, : matrix.codes.shape[1]]
        case GroupedMatrix():
            rows = [_grouped_row(matrix, row) for row in range(matrix.rows)]
            return torch.from_numpy(np.stack(rows))[:, : matrix.columns]


def _e4m3(words: Tensor) -> Tensor:
    return words.view(torch.float8_e4m3fn).double()


def _grouped_row(matrix: GroupedMatrix, row: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """One row from its streams of bits, the low bits of a lane first."""
    low_bits = min(matrix.bits, 4) if matrix.bits < 8 else 8
    codes = _stream(matrix.codes[row], low_bits)
    if matrix.high is not None:
        codes = codes + 16 * _stream(matrix.high[row], matrix.bits - 4)
    signed = np.where(codes >= 2 ** (matrix.bits - 1), codes - 2**matrix.bits, codes)
    scales = matrix.scales[row].double().numpy()
    return np.repeat(scales, len(signed) // len(scales)) * signed


def _stream(plane: Tensor, bits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    lanes = np.unpackbits(plane.numpy(), bitorder="little").reshape(-1, bits)
    return np.asarray((lanes << np.arange(bits)).sum(1), np.int64)
