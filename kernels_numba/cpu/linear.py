"""Matrix products of float32 activations with tiled weights: faster than BLAS up to some hundred rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, compiled
from kernels_numba.cpu.products import ROWS, add_products_of_four, add_products_of_one
from kernels_numba.cpu.storage import stored
from kernels_numba.shapes import PackedLinear

TILE = 64
"""Output columns that are worked on together: four AVX-512 registers."""


def pack_linear(weight: Tensor) -> PackedLinear:
    """Tiles ``[..., ceil(M / 64), K, 64]`` of ``weight [..., M, K]``, padded with zeros.

    If bfloat16 holds every value exactly, as for any checkpoint that was saved in it, the tiles are kept in bfloat16:
    the results are the same bits, and decode reads half the memory.
    """
    *stack, outputs, inputs = weight.shape
    tiles = -(-outputs // TILE)
    padded = weight.new_zeros(*stack, tiles * TILE, inputs)
    padded[..., :outputs, :] = weight
    rounded = padded.bfloat16()
    if torch.equal(rounded.float(), padded):
        padded = rounded
    return PackedLinear(padded.view(*stack, tiles, TILE, inputs).mT.contiguous(), outputs)


def linear(x: Tensor, weight: PackedLinear) -> Tensor:
    out = torch.empty(x.shape[0], weight.outputs)
    _linear(x.numpy(), stored(weight.data), out.numpy())
    return out


@compiled(ORDERED)
def _linear(x: Any, tiles: Any, out: Any) -> None:
    rows, outputs = out.shape
    sums = np.empty((ROWS, TILE), np.float32)
    for tile in range(tiles.shape[0]):
        first = tile * TILE
        width = min(TILE, outputs - first)
        row = 0
        while row < rows:
            count = ROWS if row + ROWS <= rows else 1
            sums[:count] = 0
            if count == ROWS:
                add_products_of_four(x[row : row + ROWS], tiles[tile], sums)
            else:
                add_products_of_one(x[row], tiles[tile], sums[0])
            for r in range(count):
                for c in range(width):
                    out[row + r, first + c] = sums[r, c]
            row += count
