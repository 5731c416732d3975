"""Weights as CPU kernels read them: tiles of 64 output rows side by side, so that the lanes of a register are rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels_numba.cpu.storage import stored
from kernels_numba.matrices import DenseMatrix, Matrix
from kernels_numba.torch_ops.decoding import row_multiplier, unscaled

TILE = 64
"""Output rows that are worked on together: four AVX-512 registers."""


class DenseTiles(NamedTuple):
    """Values in float32 or in the bits of bfloat16."""

    values: Any  # [..., T, K, 64]


@dataclass(frozen=True)
class TiledSegment:
    """Rows of one format, or a stack of such."""

    tiles: DenseTiles
    rows: int

    @property
    def size_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.tiles)

    def __getitem__(self, index: int) -> TiledSegment:
        return TiledSegment(type(self.tiles)(*(plane[index] for plane in self.tiles)), self.rows)


def tiled(matrix: Matrix) -> TiledSegment:
    """A matrix, or a stack of them, in tiles."""
    if not isinstance(matrix, DenseMatrix):
        matrix = _decoded(matrix)
    return TiledSegment(DenseTiles(stored(_tiles(_narrowed(matrix.values)))), matrix.rows)


def _decoded(matrix: Matrix) -> DenseMatrix:
    if matrix.stack:
        return DenseMatrix(torch.stack([_decoded(matrix[index]).values for index in range(matrix.stack[0])]))
    values, multiplier = unscaled(matrix, torch.float32), row_multiplier(matrix)
    return DenseMatrix(values if multiplier is None else values * multiplier[:, None])


def _narrowed(values: Tensor) -> Tensor:
    """In bfloat16 if that holds every value exactly, as for any checkpoint that was saved in it.

    The results are the same bits, and decode reads half the memory.
    """
    rounded = values.bfloat16()
    return rounded if torch.equal(rounded.to(values.dtype), values) else values


def _tiles(plane: Tensor) -> Tensor:
    """``[..., T, X, 64]`` of ``plane [..., N, X]``, whose rows are padded with zeros."""
    *stack, rows, width = plane.shape
    tiles = -(-rows // TILE)
    padded = plane.new_zeros(*stack, tiles * TILE, width)
    padded[..., :rows, :] = plane
    return padded.view(*stack, tiles, TILE, width).mT.contiguous()
