"""Weights as CPU kernels read them: tiles of 64 output rows side by side, so that the lanes of a register are rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels_numba.cpu.storage import stored
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix

TILE = 64
"""Output rows that are worked on together: four AVX-512 registers."""
STEP_COLUMNS = 8
"""Columns that are decoded together; all codes are padded to a multiple with zeros."""


class DenseTiles(NamedTuple):
    """Values in float32 or in the bits of bfloat16."""

    values: Any  # [..., T, K, 64]


class CodedTiles(NamedTuple):
    """Planes of a quantised format, each the bytes of its rows side by side. The class of a format is its type."""

    codes: Any  # uint8 [..., T, bytes, 64]
    high: Any  # uint8 [..., T, bytes, 64], no bytes in most formats
    scales: Any  # [..., T, groups, 64], no groups in a format without
    multiplier: Any  # float32 [..., T, 1, 64]


class Nvfp4Tiles(CodedTiles):
    """Pairs of E2M1 codes, E4M3 scales."""


class Fp8RowTiles(CodedTiles):
    """E4M3 codes."""


class Fp8BlockTiles(CodedTiles):
    """E4M3 codes, float32 scales of 128 columns."""


class Int2Tiles(CodedTiles):
    """Four codes a byte; float16 scales as in all grouped formats."""


class Int4Tiles(CodedTiles):
    """Two codes a byte."""


class Int5Tiles(CodedTiles):
    """The low bits of two codes a byte, the high bits of eight."""


class Int6Tiles(CodedTiles):
    """The low bits of two codes a byte, the high bits of four."""


class Int8Tiles(CodedTiles):
    """One code a byte."""


GROUPED_TILES = {2: Int2Tiles, 4: Int4Tiles, 5: Int5Tiles, 6: Int6Tiles, 8: Int8Tiles}


@dataclass(frozen=True)
class TiledSegment:
    """Rows of one format, or a stack of such."""

    tiles: DenseTiles | CodedTiles
    rows: int

    @property
    def size_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.tiles)

    def __getitem__(self, index: int) -> TiledSegment:
        return TiledSegment(type(self.tiles)(*(plane[index] for plane in self.tiles)), self.rows)


def tiled(matrix: Matrix) -> TiledSegment:
    """A matrix, or a stack of them, in tiles."""
    return TiledSegment(_tiled(matrix), matrix.rows)


def _tiled(matrix: Matrix) -> DenseTiles | CodedTiles:
    match matrix:
        case DenseMatrix():
            return DenseTiles(stored(_tiles(_narrowed(matrix.values))))
        case Nvfp4Matrix():
            return _coded(Nvfp4Tiles, matrix, matrix.scales, matrix.multiplier)
        case Fp8RowMatrix():
            return _coded(Fp8RowTiles, matrix, None, matrix.multiplier)
        case Fp8BlockMatrix():
            rows = matrix.block_of_row.long()[..., None].expand(*matrix.block_of_row.shape, matrix.scales.shape[-1])
            return _coded(Fp8BlockTiles, matrix, matrix.scales.gather(-2, rows), None)
        case GroupedMatrix():
            scales = matrix.scales.view(torch.uint16)
            return _coded(GROUPED_TILES[matrix.bits], matrix, scales, None, matrix.high)


def _coded(
    kind: type[CodedTiles],
    matrix: Nvfp4Matrix | Fp8RowMatrix | Fp8BlockMatrix | GroupedMatrix,
    scales: Tensor | None,
    multiplier: Tensor | None,
    high: Tensor | None = None,
) -> CodedTiles:
    padding = -matrix.codes.shape[-1] % STEP_COLUMNS if matrix.columns == matrix.codes.shape[-1] else 0
    codes = functional.pad(matrix.codes, (0, padding))
    nothing = codes.new_empty(*codes.shape[:-1], 0)
    if multiplier is None:
        multiplier = torch.ones(codes.shape[:-1])
    planes = (codes, nothing if high is None else high, nothing if scales is None else scales, multiplier[..., None])
    return kind(*(_tiles(plane).numpy() for plane in planes))


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
