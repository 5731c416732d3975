"""How a product is cut: slices of the columns, and rows of activations at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernels_numba.nvidia.linear_formats import PLACE_BYTES, STEP_COLUMNS, TILE_ROWS, StreamFormat
from kernels_numba.nvidia.linear_kernels import GEMV_COLUMNS, SMALL_ARCHS, SMALL_WARPS, WARPS

SLICES = (1, 2, 4, 8)
"""1, or a multiple of 2: the last block adds them in pairs."""
READ_BYTES_PER_US = 4.2e6
ACTIVATION_BYTES_PER_US = 5.5e6
SLICED_US, EACH_SLICE_US = 1.5, 0.15
"""What meeting in memory costs. Ratios of these figures decide, and they hold for other cards as well."""


def warps_of(arch: str) -> int:
    """Warps of the blocks that a device runs."""
    return SMALL_WARPS if arch in SMALL_ARCHS else WARPS


def shared_bytes(weights: StreamFormat, columns: int, slice_columns: int, warps: int) -> int:
    """Dynamic shared memory of ``linear_gemv``: rings, shared tiles, activations, their factors and maxima."""
    rings = warps * weights.depth * weights.step_bytes
    places = warps * PLACE_BYTES * ((columns + 7) // 8)
    return rings + places + 2 * columns * slice_columns + 4 * columns * (1 + warps)


@dataclass(frozen=True)
class Limits:
    """What a device has."""

    multiprocessors: int
    shared_bytes: int  # most of a block
    warps: int  # of a block

    def fit(self, weights: StreamFormat, columns: int, slice_columns: int) -> bool:
        """Whether the kernel for so many rows of activations has room."""
        return shared_bytes(weights, columns, slice_columns, self.warps) <= self.shared_bytes


@lru_cache(maxsize=4096)
def slices_of(
    weights: StreamFormat, rows: int, columns: int, limits: Limits, batch: int = GEMV_COLUMNS[0]
) -> int | None:
    """Slices that should take the least time with the kernel for ``batch`` rows; None if no cut has room."""
    steps, tiles = columns // STEP_COLUMNS, rows // TILE_ROWS
    best: tuple[float, int] | None = None
    for slices in SLICES:
        slice_columns = columns // slices
        if steps % slices or slices > limits.multiprocessors or not limits.fit(weights, batch, slice_columns):
            continue
        blocks = min(limits.multiprocessors // slices, tiles)
        busiest_bytes = -(-tiles // blocks) * (steps // slices) * weights.step_bytes
        us = busiest_bytes * limits.multiprocessors / READ_BYTES_PER_US
        us += blocks * slices * 2 * batch * slice_columns / ACTIVATION_BYTES_PER_US
        us += SLICED_US + EACH_SLICE_US * slices if slices > 1 else 0
        best = min(best or (us, slices), (us, slices))
    return best[1] if best else None


def pass_of(
    weights: StreamFormat, rows: int, columns: int, limits: Limits, batch: int, packed_slices: int = 1
) -> tuple[int, int]:
    """Of the kernels that have room, the smallest for ``batch`` rows of activations or else the largest, and slices.

    Those it is packed in, if there are several, or else those that are best for few rows, if there is room for more.
    """
    fitting = []
    usual = packed_slices if packed_slices > 1 else slices_of(weights, rows, columns, limits)
    for n in GEMV_COLUMNS:
        if usual is not None and limits.fit(weights, n, columns // usual):
            fitting.append((n, usual))
        elif packed_slices == 1 and (slices := slices_of(weights, rows, columns, limits, n)) is not None:
            fitting.append((n, slices))
    return next((found for found in fitting if found[0] >= batch), fitting[-1])
