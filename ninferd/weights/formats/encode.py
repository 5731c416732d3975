"""Encoders of the artifact formats in numpy: what every faster implementation must equal bit for bit.

The rules are those of the public converters, by their names there: grouped integers ``MAXABS_F16_RECIP_RNE_V1``,
nvfp4 ``NVFP4_MAXABS_DIVISOR_RNE_V1``, FP8 rows ``MAXABS_BF16S_RECIP_E4M3FN_RNE_V1``. All arithmetic is float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats.encoders import Nvfp4Method
from ninferd.weights.formats.minifloat import (
    E2M1_LARGEST,
    E2M1_VALUES,
    E4M3_LARGEST,
    E4M3_LARGEST_WORD,
    E4M3_VALUES,
    bf16_of_float32,
    e2m1_of_float32,
    e4m3_of_float32,
    float32_of_bf16,
)
from ninferd.weights.formats.packing import pack
from ninferd.weights.formats.registry import GROUPED, GROUPED_COLUMN_MULTIPLE, NVFP4_BLOCK, padded

LEAST_ERROR_STEPS = (0, -1, 1, -2, 2, 3, 4, 5, 6)
"""Scale words that ``least_error`` tries, relative to the one of ``max_abs_lifted``; the first of equals is kept.

On gaussian weights this window holds the best of all scale words in more than 99.9 % of the blocks: down to -2 the
largest magnitudes are clipped, from +3 on they become 4 instead of 6.
"""

_FLOAT32_LARGEST = float(np.finfo(np.float32).max)
_FLOAT16_LARGEST = 65504.0
_KIND_OF_BITS = {kind.bits: kind for kind in GROUPED.values()}


class NumpyEncoders:
    """The reference implementation of :class:`Encoders`."""

    def largest(self, values: NDArray[Any]) -> float:
        return float(np.max(np.abs(_float32(values)), initial=0))

    def grouped(
        self, values: NDArray[Any], bits: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, NDArray[np.float16]]:
        kind = _KIND_OF_BITS[bits]
        rows, columns = values.shape
        padded_rows = np.zeros((rows, padded(columns, GROUPED_COLUMN_MULTIPLE)), np.float32)
        padded_rows[:, :columns] = _float32(values)
        x = padded_rows.reshape(rows, -1, kind.group)
        largest = np.abs(x).max(axis=2)
        _require_encodable(largest, above=_FLOAT16_LARGEST * kind.largest)
        scales = (largest / np.float32(kind.largest)).astype(np.float16)
        scales[(scales == 0) & (largest > 0)] = np.float16(2.0**-24)
        inverse = _reciprocal(scales.astype(np.float32))
        codes = np.rint(np.clip(x * inverse[:, :, None], kind.smallest, kind.largest)).astype(np.int8)
        return *pack(codes.reshape(rows, -1), kind), scales

    def nvfp4(
        self, values: NDArray[Any], divisor: float, method: Nvfp4Method
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows, columns = values.shape
        x = _float32(values).reshape(rows, -1, NVFP4_BLOCK)
        _require_encodable(np.abs(x).max(axis=2))
        y = x * np.float32(divisor)
        words = _scale_words(y)
        if method != "max_abs":
            words = np.where((words == 0) & (y != 0).any(axis=2), np.uint8(1), words)
        if method == "least_error":
            words = _least_error(y, words)
        codes = _e2m1_codes(y, words).reshape(rows, columns)
        return codes[:, ::2] | codes[:, 1::2] << np.uint8(4), words

    def fp8_rows(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        x = _float32(values)
        if values.dtype != np.uint16:
            x = float32_of_bf16(bf16_of_float32(x))
        largest = np.abs(x).max(axis=1)
        _require_encodable(largest[:, None])
        scales = bf16_of_float32(largest / np.float32(E4M3_LARGEST))
        scales[(scales == 0) & (largest > 0)] = 1
        scaled = x * _reciprocal(float32_of_bf16(scales))[:, None]
        return e4m3_of_float32(scaled), scales


def _require_encodable(largest: NDArray[np.float32], above: float = _FLOAT32_LARGEST) -> None:
    """InputError naming the first row of the magnitudes ``[R, groups]`` that is not finite or beyond ``above``."""
    good = (largest <= above).all(axis=1)
    if not good.all():
        raise InputError(
            f"row {int(np.argmin(good))} of the block holds a value that is not finite, or above {above:.4g}"
        )


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint16:
        return float32_of_bf16(values)
    if values.dtype == np.float32:
        return values
    raise TypeError(f"values are {values.dtype}, not float32 or bfloat16 words")


def _reciprocal(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, 0 for 0; of a scale so small that this overflows, the largest float32, so that 0 stays 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.minimum(np.float32(1) / scales, np.float32(_FLOAT32_LARGEST))
    return np.where(scales == 0, np.float32(0), inverse)


def _scale_words(y: NDArray[np.float32]) -> NDArray[np.uint8]:
    return e4m3_of_float32(np.minimum(np.abs(y).max(axis=2) / np.float32(E2M1_LARGEST), np.float32(E4M3_LARGEST)))


def _e2m1_codes(y: NDArray[np.float32], words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes of blocks ``[R, B, 16]`` by the scale words ``[R, B]``; the scale 0 gives the code 0."""
    scales = E4M3_VALUES[words][:, :, None]
    safe = np.where(scales == 0, np.float32(1), scales).astype(np.float32, copy=False)
    return np.where(scales == 0, np.uint8(0), e2m1_of_float32(y / safe))


def _least_error(y: NDArray[np.float32], words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    best: NDArray[np.uint8] = words
    least = _squared_error(y, words)
    for step in LEAST_ERROR_STEPS[1:]:
        tried = np.clip(words.astype(np.int16) + step, 0, E4M3_LARGEST_WORD).astype(np.uint8)
        error = _squared_error(y, tried)
        best = np.where(error < least, tried, best)
        least = np.minimum(error, least)
    return best


def _squared_error(y: NDArray[np.float32], words: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Squared error of each block ``[R, B]``, summed in halves: that order is part of the definition."""
    difference = y - E2M1_VALUES[_e2m1_codes(y, words)] * E4M3_VALUES[words][:, :, None]
    total = difference * difference
    while total.shape[2] > 1:
        half = total.shape[2] // 2
        total = total[:, :, :half] + total[:, :, half:]
    return total[:, :, 0]
