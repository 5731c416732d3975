"""Quantised rows of gaussian weights, made once for each kind of matrix and turned for each use.

A turn moves whole blocks of 128 rows down and whole runs of 128 columns across, which moves the bytes of codes and
scales and never changes them: 20 GB are written at the speed of the disk. Rows of different turns are different, so
that a matrix made of many turns still has full rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.encoders import Encoders, encode_rows, nvfp4_divisor
from ninferd.weights.formats.registry import NVFP4, NVFP4_TILE_ROWS, padded

POOL_ELEMENTS = 8 << 20
BLOCK_ROWS = NVFP4_TILE_ROWS
TURN_COLUMNS = 128  # whole groups and whole bytes of every format


@dataclass(frozen=True)
class PoolKey:
    """What matrices have in common that are drawn from one pool."""

    format: str
    columns: int
    sigma: float


@dataclass(frozen=True)
class RowPool:
    """Rows of one kind: the planes of an artifact, nvfp4's scales in file order, all divided by ``divisor``."""

    key: PoolKey
    rows: int  # a multiple of BLOCK_ROWS
    planes: Mapping[str, NDArray[Any]]
    divisor: float  # of nvfp4, else 1

    @property
    def turns(self) -> tuple[int, int]:
        """How many turns there are, down and across."""
        columns = self.key.columns
        return self.rows // BLOCK_ROWS, columns // TURN_COLUMNS if columns % TURN_COLUMNS == 0 else 1

    def turned(self, down: int, across: int) -> dict[str, NDArray[Any]]:
        """All rows, turned; copies."""
        return {name: self._turned(name, plane, (down, across)) for name, plane in self.planes.items()}

    def _turned(self, name: str, plane: NDArray[Any], turn: tuple[int, int]) -> NDArray[Any]:
        blocks, runs = self.turns
        if plane.ndim == 1:
            return np.roll(plane, turn[0] * BLOCK_ROWS)
        if name == "scales" and self.key.format == NVFP4:  # tiles of 128 rows, one run of columns after the other
            return np.roll(plane.reshape(blocks, runs, -1), turn, (0, 1)).reshape(plane.shape)
        return np.roll(plane.reshape(blocks, BLOCK_ROWS, runs, -1), turn, (0, 2)).reshape(plane.shape)


def pool_rows(columns: int, most_rows: int) -> int:
    """Rows of a pool for matrices of at most ``most_rows`` rows."""
    affordable = max(POOL_ELEMENTS // columns // BLOCK_ROWS, 1) * BLOCK_ROWS
    return min(affordable, padded(most_rows, BLOCK_ROWS))


def make_pool(key: PoolKey, rows: int, encoders: Encoders, seed: int) -> RowPool:
    """A pool of ``rows`` (a multiple of BLOCK_ROWS); the same for the same arguments."""
    generator = np.random.default_rng([seed, *key.format.encode(), key.columns, np.float64(key.sigma).view(np.int64)])
    values = generator.standard_normal((rows, key.columns), np.float32)
    values *= np.float32(key.sigma)
    divisor = nvfp4_divisor(encoders.largest(values)) if key.format == NVFP4 else 1.0
    return RowPool(key, rows, encode_rows(values, key.format, encoders, divisor=divisor), divisor)
