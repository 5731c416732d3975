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
"""Columns that are decoded together; codes are padded to a multiple with zeros."""


class Tiles(NamedTuple):
    """Planes of stored weights, the words of 64 rows side by side; the class says which format."""

    codes: Any  # [..., T, words, 64]: uint8; uint16 for bfloat16, or float32
    high: Any  # uint8 [..., T, words, 64], high bits of 5- and 6-bit codes; in others, no words
    scales: Any  # [..., T, groups, 64]; no groups in a format without
    multiplier: Any  # float32 [..., T, 1 or 0, 64], for the sums


class Float32Tiles(Tiles):
    """Plain values."""


class Bfloat16Tiles(Tiles):
    """Plain values by their bits."""


class Nvfp4Tiles(Tiles):
    """Two E2M1 codes a byte, E4M3 scales, a multiplier."""


class Fp8RowTiles(Tiles):
    """E4M3 codes, a multiplier."""


class Fp8BlockTiles(Tiles):
    """E4M3 codes, float32 scales."""


class Int2Tiles(Tiles):
    """Four codes a byte; float16 scales by their bits, as in all grouped formats."""


class Int4Tiles(Tiles):
    """Two codes a byte."""


class Int5Tiles(Tiles):
    """The low bits of two codes a byte, the high bits of eight."""


class Int6Tiles(Tiles):
    """The low bits of two codes a byte, the high bits of four."""


class Int8Tiles(Tiles):
    """One code a byte."""


GROUPED_TILES = {2: Int2Tiles, 4: Int4Tiles, 5: Int5Tiles, 6: Int6Tiles, 8: Int8Tiles}


@dataclass(frozen=True)
class TiledSegment:
    """Rows of one format, or a stack of such."""

    tiles: Tiles
    rows: int

    @property
    def size_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.tiles)

    def __getitem__(self, index: int) -> TiledSegment:
        return TiledSegment(type(self.tiles)(*(plane[index] for plane in self.tiles)), self.rows)


def tiled(matrix: Matrix) -> TiledSegment:
    """A matrix, or a stack of them, in tiles."""
    return TiledSegment(_tiled(matrix), matrix.rows)


def _tiled(matrix: Matrix) -> Tiles:
    """Kernels decode words that mean no number to some number: here their rows get a multiplier of NaN."""
    match matrix:
        case DenseMatrix():
            values = _narrowed(matrix.values)
            return _planes(Bfloat16Tiles if values.dtype == torch.bfloat16 else Float32Tiles, _padded(values))
        case Nvfp4Matrix():
            multiplier = _nan_where(_is_e4m3_nan(matrix.scales), matrix.multiplier)
            return _planes(Nvfp4Tiles, matrix.codes, scales=matrix.scales, multiplier=multiplier)
        case Fp8RowMatrix():
            multiplier = _nan_where(_is_e4m3_nan(matrix.codes), matrix.multiplier)
            return _planes(Fp8RowTiles, _padded(matrix.codes), multiplier=multiplier)
        case Fp8BlockMatrix():
            blocks = matrix.block_of_row.long()[..., None].expand(*matrix.block_of_row.shape, matrix.scales.shape[-1])
            multiplier = _nan_where(_is_e4m3_nan(matrix.codes))
            return _planes(
                Fp8BlockTiles, _padded(matrix.codes), scales=matrix.scales.gather(-2, blocks), multiplier=multiplier
            )
        case GroupedMatrix():
            multiplier = _nan_where(~matrix.scales.isfinite())
            bits = matrix.scales.view(torch.uint16)
            return _planes(GROUPED_TILES[matrix.bits], matrix.codes, matrix.high, bits, multiplier)


def _planes(
    kind: type[Tiles],
    codes: Tensor,
    high: Tensor | None = None,
    scales: Tensor | None = None,
    multiplier: Tensor | None = None,
) -> Tiles:
    nothing = codes.new_empty(*codes.shape[:-1], 0)
    factors = torch.empty(nothing.shape) if multiplier is None else multiplier[..., None]
    planes = (codes, nothing if high is None else high, nothing if scales is None else scales, factors)
    return kind(*(stored(_tiles(plane)) for plane in planes))


def _narrowed(values: Tensor) -> Tensor:
    """In bfloat16 if that holds every value exactly, as for any checkpoint that was saved in it.

    The results are the same bits, and decode reads half the memory.
    """
    rounded = values.bfloat16()
    return rounded if torch.equal(rounded.to(values.dtype), values) else values


def _padded(codes: Tensor) -> Tensor:
    """With whole steps of columns."""
    return functional.pad(codes, (0, -codes.shape[-1] % STEP_COLUMNS))


def _is_e4m3_nan(words: Tensor) -> Tensor:
    return (words & 0x7F) == 0x7F


def _nan_where(is_nan: Tensor, multiplier: Tensor | None = None) -> Tensor | None:
    """``multiplier [..., N]``, NaN in rows where ``is_nan [..., N, X]`` holds anywhere."""
    rows = is_nan.any(-1)
    if not rows.any():
        return multiplier
    return (torch.ones(rows.shape) if multiplier is None else multiplier).masked_fill(rows, torch.nan)


def _tiles(plane: Tensor) -> Tensor:
    """``[..., T, X, 64]`` of ``plane [..., N, X]``, whose rows are padded with zeros."""
    *stack, rows, width = plane.shape
    tiles = -(-rows // TILE)
    padded = plane.new_zeros(*stack, tiles * TILE, width)
    padded[..., :rows, :] = plane
    return padded.view(*stack, tiles, TILE, width).mT.contiguous()
