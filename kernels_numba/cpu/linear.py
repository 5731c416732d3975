"""Matrix products of float32 activations with tiled weights: faster than BLAS up to some hundred rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.steps import add_products, decode
from kernels_numba.cpu.tiles import TILE, Float32Tiles, TiledSegment, tiled
from kernels_numba.matrices import Matrix, joined
from kernels_numba.shapes import PackedLinear

BLOCK_COLUMNS = 128
"""Columns that are decoded at a time: 64 rows of them fill most of the first cache. A multiple of all groups."""
MANY_ROWS = 8
"""From here on weights are decoded into memory first; fewer rows decode them where they are multiplied."""


def pack_linear(*matrices: Matrix) -> PackedLinear:
    """Tiles of 64 rows, padded with zeros."""
    return PackedLinear(tuple(tiled(matrix) for matrix in joined(matrices)))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    out = torch.empty(x.shape[0], packed.outputs)
    rows, products, first = x.contiguous().numpy(), out.numpy(), 0
    for segment in cast(tuple[TiledSegment, ...], packed.segments):
        if len(rows) < MANY_ROWS or isinstance(segment.tiles, Float32Tiles):
            _linear(rows, segment.tiles, first, segment.rows, products)
        else:
            _blockwise_linear(rows, segment.tiles, _scratch(), first, segment.rows, products)
        first += segment.rows
    return out


def _scratch() -> Float32Tiles:
    """One tile of decoded columns."""
    nothing = np.empty((1, 0, TILE), np.uint8)
    return Float32Tiles(np.empty((1, BLOCK_COLUMNS, TILE), np.float32), nothing, nothing, nothing)


@compiled(ORDERED)
def _linear(x: Any, tiles: Any, first: Any, outputs: Any, out: Any) -> None:
    """``out[:, first : first + outputs] = x @ weights.T``."""
    sums = np.empty((x.shape[0], TILE), np.float32)
    for tile in range(tiles.codes.shape[0]):
        sums[:] = 0
        add_products(tiles, tile, x, 0, x.shape[1], sums)
        _write(sums, tiles, tile, first, outputs, out)


@compiled(ORDERED)
def _blockwise_linear(x: Any, tiles: Any, decoded: Any, first: Any, outputs: Any, out: Any) -> None:
    """As ``_linear``; every weight is decoded once, into ``decoded``, for all rows."""
    sums = np.empty((x.shape[0], TILE), np.float32)
    for tile in range(tiles.codes.shape[0]):
        sums[:] = 0
        for column in range(0, x.shape[1], BLOCK_COLUMNS):
            count = min(BLOCK_COLUMNS, x.shape[1] - column)
            decode(tiles, tile, column, count, decoded.codes[0])
            add_products(decoded, 0, x, column, count, sums)
        _write(sums, tiles, tile, first, outputs, out)


@compiled(ORDERED)
def _write(sums: Any, tiles: Any, tile: Any, first: Any, outputs: Any, out: Any) -> None:
    """Sums of a tile to their columns of ``out``, times the multiplier of each if there is one."""
    begin = tile * TILE
    width = min(TILE, outputs - begin)
    for row in range(sums.shape[0]):
        for multiplier in tiles.multiplier[tile]:
            for c in range(width):
                sums[row, c] *= multiplier[c]
        for c in range(width):
            out[row, first + begin + c] = sums[row, c]
