"""Matrix products of float32 activations with tiled weights: faster than BLAS up to some hundred rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.decoding import add_products_of_row, decode
from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.products import add_products
from kernels_numba.cpu.tiles import TILE, DenseTiles, TiledSegment, tiled
from kernels_numba.matrices import Matrix, joined
from kernels_numba.shapes import PackedLinear

BLOCK_COLUMNS = 128
"""Columns that are decoded at a time: 64 rows of them fill most of the first cache. A multiple of all groups."""


def pack_linear(*matrices: Matrix) -> PackedLinear:
    """Tiles of 64 rows, padded with zeros."""
    return PackedLinear(tuple(tiled(matrix) for matrix in joined(matrices)))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    out = torch.empty(x.shape[0], packed.outputs)
    rows, products, first = x.numpy(), out.numpy(), 0
    for segment in cast(tuple[TiledSegment, ...], packed.segments):
        kernel = _linear if isinstance(segment.tiles, DenseTiles) else _coded_linear
        kernel(rows, segment.tiles, first, segment.rows, products)
        first += segment.rows
    return out


@compiled(ORDERED)
def _linear(x: Any, tiles: Any, first: Any, outputs: Any, out: Any) -> None:
    """``out[:, first : first + outputs] = x @ weights.T``."""
    values = tiles.values
    sums = np.empty((x.shape[0], TILE), np.float32)
    for tile in range(values.shape[0]):
        sums[:] = 0
        add_products(x, values[tile], sums)
        begin = tile * TILE
        width = min(TILE, outputs - begin)
        for row in range(x.shape[0]):
            for c in range(width):
                out[row, first + begin + c] = sums[row, c]


@compiled(ORDERED)
def _coded_linear(x: Any, tiles: Any, first: Any, outputs: Any, out: Any) -> None:
    """As ``_linear``, of weights that are decoded once for all rows, some columns at a time."""
    rows, columns = x.shape
    weights = np.empty((BLOCK_COLUMNS, TILE), np.float32)
    sums = np.empty((rows, TILE), np.float32)
    for tile in range(tiles.codes.shape[0]):
        sums[:] = 0
        if rows == 1:
            add_products_of_row(tiles, tile, x[0], sums[0])
        else:
            for k in range(0, columns, BLOCK_COLUMNS):
                count = min(BLOCK_COLUMNS, columns - k)
                decode(tiles, tile, k, count, weights)
                add_products(x[:, k : k + count], weights[:count], sums)
        begin = tile * TILE
        width = min(TILE, outputs - begin)
        multiplier = tiles.multiplier[tile, 0]
        for row in range(rows):
            for c in range(width):
                out[row, first + begin + c] = sums[row, c] * multiplier[c]
