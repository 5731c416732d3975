"""Order of NVFP4 block scales in an artifact (layout ``block_scale_k16_m128x4_v1``).

The scales ``[N, K/16]`` are cut into tiles of 128 rows and 4 blocks of 16 columns. Tiles follow each other row of tiles
by row of tiles, 512 bytes each; inside, 128 rows are 4 bands of 32, and bytes go by row in its band, band, block. It is
the scale order that cuBLASLt documents for block-scaled products. With T = K/64 tiles in a row of tiles::

    offset(n, g) = (n // 128 * T + g // 4) * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4

Rows 128 i to 128 j are therefore one run of bytes, and that run is itself in this order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.registry import NVFP4_TILE_ROWS, padded

_BANDS = 4
_BAND_ROWS = NVFP4_TILE_ROWS // _BANDS
_TILE_BLOCKS = 4


def swizzled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Scales ``[N, K/16]`` in natural order to file order, same shape; N % 128 == 0 and K % 64 == 0."""
    rows, blocks = scales.shape
    bands = scales.reshape(rows // NVFP4_TILE_ROWS, _BANDS, _BAND_ROWS, blocks // _TILE_BLOCKS, _TILE_BLOCKS)
    return bands.transpose(0, 3, 2, 1, 4).reshape(rows, blocks)


def unswizzled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of :func:`swizzled`."""
    rows, blocks = scales.shape
    tiles = scales.reshape(rows // NVFP4_TILE_ROWS, blocks // _TILE_BLOCKS, _BAND_ROWS, _BANDS, _TILE_BLOCKS)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, blocks)


def tile_rows(begin: int, end: int) -> tuple[int, int]:
    """The rows of the tiles that hold the rows ``begin`` to ``end``: they can be read and unswizzled by themselves."""
    return begin // NVFP4_TILE_ROWS * NVFP4_TILE_ROWS, padded(end, NVFP4_TILE_ROWS)
