"""Matrix products of float32 activations with tiled weights: faster than BLAS up to some hundred rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.products import ROWS, add_products_of_four, add_products_of_one
from kernels_numba.cpu.tiles import TILE, TiledSegment, tiled
from kernels_numba.matrices import Matrix, joined
from kernels_numba.shapes import PackedLinear


def pack_linear(*matrices: Matrix) -> PackedLinear:
    """Tiles of 64 rows, padded with zeros."""
    return PackedLinear(tuple(tiled(matrix) for matrix in joined(matrices)))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    out = torch.empty(x.shape[0], packed.outputs)
    rows, products, first = x.numpy(), out.numpy(), 0
    for segment in cast(tuple[TiledSegment, ...], packed.segments):
        _linear(rows, segment.tiles, first, segment.rows, products)
        first += segment.rows
    return out


@compiled(ORDERED)
def _linear(x: Any, tiles: Any, first: Any, outputs: Any, out: Any) -> None:
    """``out[:, first : first + outputs] = x @ weights.T``."""
    rows = x.shape[0]
    values = tiles.values
    sums = np.empty((ROWS, TILE), np.float32)
    for tile in range(values.shape[0]):
        begin = tile * TILE
        width = min(TILE, outputs - begin)
        row = 0
        while row < rows:
            count = ROWS if row + ROWS <= rows else 1
            sums[:count] = 0
            if count == ROWS:
                add_products_of_four(x[row : row + ROWS], values[tile], sums)
            else:
                add_products_of_one(x[row], values[tile], sums[0])
            for r in range(count):
                for c in range(width):
                    out[row + r, first + begin + c] = sums[r, c]
            row += count
