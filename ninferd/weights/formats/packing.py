"""Bits of grouped integers inside their bytes (layout ``row_split_k128_v1``), in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.registry import GROUPED_COLUMN_MULTIPLE, GroupedFormat, padded


def pack(codes: NDArray[np.int8], kind: GroupedFormat) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Planes ``codes`` ``[N, groups * 32]`` and, for 5 and 6 bits, ``high`` of two's complement codes ``[N, K]``.

    K is padded with code 0 to a multiple of 128 columns.
    """
    rows, columns = codes.shape
    lanes = np.zeros((rows, padded(columns, GROUPED_COLUMN_MULTIPLE)), np.uint8)
    lanes[:, :columns] = codes.view(np.uint8)
    if kind.bits == 8:
        return lanes, None
    if kind.bits == 2:
        return _joined(lanes & np.uint8(3), 2), None
    low = _joined(lanes & np.uint8(15), 4)
    if kind.bits == 4:
        return low, None
    width = kind.bits - 4
    return low, _joined((lanes >> np.uint8(4)) & np.uint8((1 << width) - 1), width)


def unpack(codes: NDArray[np.uint8], high: NDArray[np.uint8] | None, kind: GroupedFormat) -> NDArray[np.int8]:
    """Codes ``[N, K]`` with K padded to a multiple of 128; the inverse of :func:`pack`."""
    if kind.bits == 8:
        return codes.view(np.int8)
    lanes = _split(codes, min(kind.bits, 4))
    if high is not None:
        lanes |= _split(high, kind.bits - 4) << 4
    unused = 8 - kind.bits
    return (lanes << unused).view(np.int8) >> unused  # the arithmetic shift extends the sign


def _joined(lanes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Bytes of a little-endian stream of ``width`` bits per lane (1, 2 or 4)."""
    per_byte = 8 // width
    packed = lanes[:, ::per_byte].copy()
    for lane in range(1, per_byte):
        packed |= lanes[:, lane::per_byte] << (lane * width)
    return packed


def _split(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    per_byte = 8 // width
    lanes = np.empty((packed.shape[0], packed.shape[1] * per_byte), np.uint8)
    for lane in range(per_byte):
        lanes[:, lane::per_byte] = (packed >> (lane * width)) & ((1 << width) - 1)
    return lanes
