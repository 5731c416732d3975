"""How a product is cut: slices of the columns when it is packed, rows of activations at a time when it runs."""

from __future__ import annotations

from kernels_numba.nvidia.linear_formats import STEP_COLUMNS, TILE_ROWS, WARPS, StreamFormat
from kernels_numba.nvidia.linear_kernels import GEMV_COLUMNS

SLICES = (1, 2, 4, 8)
"""1, or a multiple of 2: the last block adds them in pairs."""
TYPICAL_COLUMNS = 4
"""Rows of activations that slices are chosen for."""
READ_BYTES_PER_US = 4.2e6
ACTIVATION_BYTES_PER_US = 5.5e6
SLICED_US = 2.0
"""What meeting in memory costs. Ratios of the three decide, and they hold for other cards as well."""


def shared_bytes(weights: StreamFormat, columns: int, slice_columns: int) -> int:
    """Dynamic shared memory of ``linear_gemv``: rings, shared tiles, activations, their factors and maxima."""
    rings = WARPS * weights.depth * weights.step_bytes
    places = WARPS * 512 * ((columns + 7) // 8)
    return rings + places + 2 * columns * slice_columns + 4 * columns * (1 + WARPS)


def slices_of(weights: StreamFormat, rows: int, columns: int, multiprocessors: int, shared_limit: int) -> int | None:
    """Slices that should take the least time; None if no cut fits into shared memory even for one row."""
    steps, tiles = columns // STEP_COLUMNS, rows // TILE_ROWS
    best: tuple[float, int] | None = None
    for slices in SLICES:
        if steps % slices or slices > multiprocessors:
            continue
        if shared_bytes(weights, 1, columns // slices) > shared_limit:
            continue
        blocks = min(multiprocessors // slices, tiles)
        busiest_bytes = -(-tiles // blocks) * (steps // slices) * weights.step_bytes
        us = busiest_bytes * multiprocessors / READ_BYTES_PER_US
        us += blocks * slices * 2 * TYPICAL_COLUMNS * (columns // slices) / ACTIVATION_BYTES_PER_US
        us += SLICED_US if slices > 1 else 0
        if shared_bytes(weights, TYPICAL_COLUMNS, columns // slices) > shared_limit:
            us *= TYPICAL_COLUMNS  # runs row by row
        best = min(best or (us, slices), (us, slices))
    return best[1] if best else None


def columns_for(weights: StreamFormat, rows: int, slice_columns: int, shared_limit: int) -> int:
    """Of the kernels that fit, the smallest for so many rows of activations, or else the largest."""
    fitting = [n for n in GEMV_COLUMNS if shared_bytes(weights, n, slice_columns) <= shared_limit]
    return next((columns for columns in fitting if columns >= rows), fitting[-1])
