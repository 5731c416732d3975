"""Encoders of the artifact formats in numpy: what every faster implementation must equal bit for bit.

The rules are those of the public converters, by their names there: grouped integers ``MAXABS_F16_RECIP_RNE_V1``,
nvfp4 ``NVFP4_MAXABS_DIVISOR_RNE_V1``, FP8 rows ``MAXABS_BF16S_RECIP_E4M3FN_RNE_V1``. All arithmetic is float32.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
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
from ninferd.weights.formats.registry import GROUPED_COLUMN_MULTIPLE, NVFP4_BLOCK, GroupedFormat, padded

Nvfp4Method = Literal["max_abs", "max_abs_lifted", "least_error"]
"""How an nvfp4 block gets its scale: the largest magnitude becomes 6; the same, but a block with a value other than
zero never gets the scale 0; or the best of the scales around it, by the squared error of the block."""

LEAST_ERROR_STEPS = (0, 1, -1, 2, -2, 3, 4, 5, 6)
"""Scale words tried by ``least_error``, relative to the one of ``max_abs``; the first of equally good ones is kept."""

_FLOAT32_LARGEST = np.finfo(np.float32).max
_HALF_LARGEST = 65504.0


class GroupedPlanes(NamedTuple):
    """Rows of a grouped format: ``codes u1 [R, groups * 32]``, ``high u1`` or None, ``scales f2 [R, groups]``."""

    codes: NDArray[np.uint8]
    high: NDArray[np.uint8] | None
    scales: NDArray[np.float16]


class ScaledPlanes(NamedTuple):
    """Rows of nvfp4 (``u1 [R, K/2]``, ``u1 [R, K/16]`` in natural order) or FP8 (``u1 [R, K]``, ``u2 [R]``)."""

    codes: NDArray[np.uint8]
    scales: NDArray[Any]


class Encoders(Protocol):
    """Encoders of rows ``[R, K]``, float32 or bfloat16 words (uint16), both C-contiguous.

    Implementations give the same bits. InputError names the first row that cannot be encoded, counted from this block:
    it holds a value that is not finite or, for grouped formats, above what an fp16 scale reaches.
    """

    def largest(self, values: NDArray[Any]) -> float:
        """The largest magnitude, which is not finite if any value is not."""

    def grouped(self, values: NDArray[Any], kind: GroupedFormat) -> GroupedPlanes: ...

    def nvfp4(self, values: NDArray[Any], divisor: float, method: Nvfp4Method = "max_abs") -> ScaledPlanes:
        """K in multiples of 16; ``divisor`` as :func:`nvfp4_divisor` of the largest magnitude of the whole parent."""

    def fp8_rows(self, values: NDArray[Any]) -> ScaledPlanes: ...


def nvfp4_divisor(largest: float) -> float:
    """The divisor of a matrix by its largest magnitude, a float32: 2688 / largest. InputError if that is not finite."""
    if not np.isfinite(largest):
        raise InputError("a value is not finite")
    if largest == 0:
        return 1.0
    return float(np.float32(min(E2M1_LARGEST * E4M3_LARGEST / float(largest), float(_FLOAT32_LARGEST))))


class NumpyEncoders:
    """The reference implementation of :class:`Encoders`."""

    def largest(self, values: NDArray[Any]) -> float:
        return float(np.max(np.abs(_float32(values)), initial=0))

    def grouped(self, values: NDArray[Any], kind: GroupedFormat) -> GroupedPlanes:
        rows, columns = values.shape
        padded_rows = np.zeros((rows, padded(columns, GROUPED_COLUMN_MULTIPLE)), np.float32)
        padded_rows[:, :columns] = _float32(values)
        x = padded_rows.reshape(rows, -1, kind.group)
        largest = np.abs(x).max(axis=2)
        require_encodable(largest, above=_HALF_LARGEST * kind.largest)
        scales = (largest / np.float32(kind.largest)).astype(np.float16)
        scales[(scales == 0) & (largest > 0)] = np.float16(2.0**-24)
        inverse = _reciprocal(scales.astype(np.float32))
        codes = np.rint(np.clip(x * inverse[:, :, None], kind.smallest, kind.largest)).astype(np.int8)
        return GroupedPlanes(*pack(codes.reshape(rows, -1), kind), scales)

    def nvfp4(self, values: NDArray[Any], divisor: float, method: Nvfp4Method = "max_abs") -> ScaledPlanes:
        rows, columns = values.shape
        x = _float32(values).reshape(rows, -1, NVFP4_BLOCK)
        require_encodable(np.abs(x).max(axis=2))
        y = x * np.float32(divisor)
        words = _scale_words(y)
        if method != "max_abs":
            words = np.where((words == 0) & (y != 0).any(axis=2), np.uint8(1), words)
        if method == "least_error":
            words = _least_error(y, words)
        codes = _e2m1_codes(y, words).reshape(rows, columns)
        return ScaledPlanes(codes[:, ::2] | codes[:, 1::2] << np.uint8(4), words)

    def fp8_rows(self, values: NDArray[Any]) -> ScaledPlanes:
        x = _float32(values)
        if values.dtype != np.uint16:
            x = float32_of_bf16(bf16_of_float32(x))
        largest = np.abs(x).max(axis=1)
        require_encodable(largest[:, None])
        scales = bf16_of_float32(largest / np.float32(E4M3_LARGEST))
        scales[(scales == 0) & (largest > 0)] = 1
        scaled = x * _reciprocal(float32_of_bf16(scales))[:, None]
        return ScaledPlanes(e4m3_of_float32(np.clip(scaled, -E4M3_LARGEST, E4M3_LARGEST)), scales)


def require_encodable(largest: NDArray[np.float32], above: float = float(_FLOAT32_LARGEST)) -> None:
    """InputError naming the first row of the magnitudes ``[R, groups]`` that is not finite or beyond ``above``."""
    good = (largest <= above).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(unencodable(row, float(np.max(largest[row])), float(above)))


def unencodable(row: int, largest: float, above: float) -> str:
    """Message of the InputError of :class:`Encoders`."""
    if np.isfinite(largest):
        return f"row {row} of the block holds the magnitude {largest:g}, above the {above:g} that the format reaches"
    return f"row {row} of the block holds a value that is not finite"


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint16:
        return float32_of_bf16(values)
    if values.dtype == np.float32:
        return values
    raise TypeError(f"values are {values.dtype}, not float32 or bfloat16 words")


def _reciprocal(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, 0 for 0; of a scale so small that this overflows, the largest float32, so that 0 stays 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.minimum(np.float32(1) / scales, _FLOAT32_LARGEST)
    return np.where(scales == 0, np.float32(0), inverse)


def _scale_words(y: NDArray[np.float32]) -> NDArray[np.uint8]:
    return e4m3_of_float32(np.minimum(np.abs(y).max(axis=2) / np.float32(E2M1_LARGEST), np.float32(E4M3_LARGEST)))


def _e2m1_codes(y: NDArray[np.float32], words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes of blocks ``[R, B, 16]`` by the scale words ``[R, B]``; the scale 0 gives the code 0."""
    scales = E4M3_VALUES[words][:, :, None]
    safe = np.where(scales == 0, np.float32(1), scales).astype(np.float32, copy=False)
    return np.where(scales == 0, np.uint8(0), e2m1_of_float32(y / safe))


def _least_error(y: NDArray[np.float32], words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    best = words
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
