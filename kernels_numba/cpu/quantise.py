"""Quantisers of weights on the CPU, bit for bit those of ``ninferd.weights.formats.encode``, on the calling thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels_numba.cpu.quantise_kernels import largest_magnitude, quantise_fp8_rows, quantise_grouped, quantise_nvfp4
from kernels_numba.quantise_limits import (
    COLUMN_MULTIPLE,
    FLOAT16_LARGEST,
    FLOAT32_LARGEST,
    GROUP_OF_BITS,
    NVFP4_BLOCK,
    NVFP4_STEPS,
    Nvfp4Method,
    code_range,
    require_no_bad_row,
)

E4M3_VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


class CpuEncoders:
    """``ninferd.weights.formats.encoders.Encoders``."""

    def largest(self, values: NDArray[Any]) -> float:
        bits = largest_magnitude(*_words(values))
        return float(np.uint32(bits).view(np.float32))

    def grouped(
        self, values: NDArray[Any], bits: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, NDArray[np.float16]]:
        rows, columns = values.shape
        group = GROUP_OF_BITS[bits]
        groups = -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE // group
        smallest, largest = code_range(bits)
        limit = FLOAT16_LARGEST * largest
        codes = np.empty((rows, groups * 32), np.uint8)
        high = np.empty((rows, groups * 8 * (bits - 4) if bits in (5, 6) else 0), np.uint8)
        scales = np.empty((rows, groups), np.uint16)
        parameters = np.float32(smallest), np.float32(largest), np.float32(limit)
        bad_row = quantise_grouped(*_words(values), bits, group, *parameters, codes, high, scales)
        require_no_bad_row(bad_row, limit)
        return codes, high if high.size else None, scales.view(np.float16)

    def nvfp4(
        self, values: NDArray[Any], divisor: float, method: Nvfp4Method
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows, columns = values.shape
        codes = np.empty((rows, columns // 2), np.uint8)
        scales = np.empty((rows, columns // NVFP4_BLOCK), np.uint8)
        lifts = method != "max_abs"
        steps = NVFP4_STEPS if method == "least_error" else ()
        parameters = np.float32(divisor), lifts, np.array(steps, np.int64), E4M3_VALUES
        require_no_bad_row(quantise_nvfp4(*_words(values), *parameters, codes, scales), FLOAT32_LARGEST)
        return codes, scales

    def fp8_rows(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        codes = np.empty(values.shape, np.uint8)
        scales = np.empty(values.shape[0], np.uint16)
        require_no_bad_row(quantise_fp8_rows(*_words(values), codes, scales), FLOAT32_LARGEST)
        return codes, scales


def _words(values: NDArray[Any]) -> tuple[NDArray[Any], np.uint32]:
    """Words and how far they are shifted to be the bits of a float32."""
    if values.dtype == np.uint16:
        return values, np.uint32(16)
    if values.dtype == np.float32:
        return values.view(np.uint32), np.uint32(0)
    raise TypeError(f"values are {values.dtype}, not float32 or bfloat16 words")
