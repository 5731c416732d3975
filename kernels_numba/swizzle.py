"""The order of NVFP4 scales in an artifact."""

from __future__ import annotations

from torch import Tensor

TILE_ROWS = 128
TILE_COLUMNS = 64


def unswizzle_scales(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Row-major ``[..., rows, columns / 16]`` of a stored scale plane ``[..., rows * columns / 16]``; a copy.

    A plane consists of tiles of 128 rows x 4 blocks of 16 columns, row of tiles by row of tiles; in a tile the bytes
    are ordered by (row % 32, row // 32, block): the blocked layout of cuBLASLt. ``rows`` must be a multiple of 128
    and ``columns`` of 64, else ValueError.
    """
    if rows % TILE_ROWS or columns % TILE_COLUMNS:
        raise ValueError(f"swizzled scales need rows % 128 == 0 and columns % 64 == 0, not {rows} x {columns}")
    stack = scales.shape[:-1]
    tiles = scales.reshape(-1, rows // TILE_ROWS, columns // TILE_COLUMNS, 32, 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).reshape(*stack, rows, columns // 16)
