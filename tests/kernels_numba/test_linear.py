"""Products with weights of every kind against their float64 values."""

from __future__ import annotations

import pytest
import torch

from kernels_numba.matrices import Matrix
from kernels_numba.ops import OpTable
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.weights import KINDS, RandomMatrices, values

SHAPES = [(1, 64), (64, 128), (100, 192), (130, 320), (257, 64)]
UNEVEN = [(3, 1), (70, 130), (90, 101), (129, 257)]
"""Columns that are no multiple of a group; NVFP4 has none such."""


def assert_close(out: torch.Tensor, x: torch.Tensor, *matrices: Matrix) -> None:
    """Within the rounding of float32 sums: measured against the sum of the magnitudes of all terms."""
    weights = torch.cat([values(matrix) for matrix in matrices])
    assert (out.dtype, out.shape) == (torch.float32, (x.shape[0], weights.shape[0]))
    error = (out.double() - x.double() @ weights.T).abs()
    assert (error <= 1e-6 * (x.double().abs() @ weights.abs().T)).all()


@pytest.mark.parametrize("rows", [0, 1, 5, 37])
@pytest.mark.parametrize("shape", SHAPES + UNEVEN, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_linear(ops: OpTable, kind: str, shape: tuple[int, int], rows: int) -> None:
    if kind == "nvfp4" and shape in UNEVEN:
        return
    matrix = RandomMatrices().by_name(kind)(*shape)
    x = Random(rows).normal(rows, shape[1]).float()
    assert_close(ops.linear(x, ops.pack_linear(matrix)), x, matrix)


def test_dense_neighbours(ops: OpTable) -> None:
    matrices = [RandomMatrices(seed).float32(rows, 70) for seed, rows in enumerate([1, 64, 30])]
    x = Random(0).normal(3, 70).float()
    assert_close(ops.linear(x, ops.pack_linear(*matrices)), x, *matrices)
