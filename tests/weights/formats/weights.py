"""Weights to quantise: typical ones, heavy tails, and the numbers at the edges of the formats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def gaussian(rows: int, columns: int) -> NDArray[np.float32]:
    return (0.02 * np.random.default_rng(11).standard_normal((rows, columns))).astype(np.float32)


def heavy_tailed(rows: int, columns: int) -> NDArray[np.float32]:
    """Student's t with three degrees of freedom, a thousandth of it thirty times as large."""
    generator = np.random.default_rng(12)
    outliers = np.where(generator.random((rows, columns)) < 1e-3, 30, 1)
    return (0.01 * generator.standard_t(3, (rows, columns)) * outliers).astype(np.float32)


def edges(rows: int, columns: int) -> NDArray[np.float32]:
    """Rows of zeros, of subnormal numbers, of one value, of ties, of huge values; groups of zeros in other rows."""
    values = gaussian(rows, columns)
    values[0] = 0
    values[1] = -0.0
    values[2] = np.linspace(-3e-39, 3e-39, columns)
    values[3] = 1e-45
    values[4] = -0.75
    values[5] = np.resize([7, 0.5, 1.5, 2.5, -0.5, -3.5, 6.5, -6.5], columns)  # ties of q4 with the scale 1
    values[6] = np.resize([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -2.5, -5, 0, -0.0, -6], columns)
    values[7] = 6e4 * values[7] / np.abs(values[7]).max()
    values[8, : columns // 2] = 0
    values[9] *= 2.0 ** -np.linspace(0, 40, columns)  # scales down into the subnormal range of fp16 and below E4M3's
    values[10] *= 1e-6
    values[11] = np.resize([448, -1.03125, 1.09375, 17, -19, 2.0**-9, 2.0**-10], columns)  # ties of E4M3
    return values


WEIGHTS = {"gaussian": gaussian, "heavy tails": heavy_tailed, "edges": edges}


def bf16_words(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves: some bfloat16 near each value."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
