"""From values to the planes of an artifact: what an encoder offers, and rows of a format by its name.

Implementations: :class:`ninferd.weights.formats.encode.NumpyEncoders`, the reference, and the fast ones of
``kernels_numba.quantise``. They give the same bits.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.formats import registry
from ninferd.weights.formats.minifloat import E2M1_LARGEST, E4M3_LARGEST, bf16_of_float32, float32_of_bf16
from ninferd.weights.formats.swizzle import swizzled

Nvfp4Method = Literal["max_abs", "max_abs_lifted", "least_error"]
"""How an nvfp4 block gets its scale: the largest magnitude becomes 6; the same, but a block with a value other than
zero never gets the scale 0; or the best of the scales around that one, by the squared error of the block."""


class Encoders(Protocol):
    """Encoders of rows ``[R, K]``, C-contiguous, float32 or bfloat16 words (uint16). Safe to call from any thread.

    InputError names the first row, counted in this block, that holds a value which is not finite or, for grouped
    formats, above what an fp16 scale reaches; the caller adds file and tensor.
    """

    def largest(self, values: NDArray[Any]) -> float:
        """The largest magnitude; not finite if any value is not."""

    def grouped(
        self, values: NDArray[Any], bits: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, NDArray[np.float16]]:
        """``codes [R, groups * 32]``, ``high`` (5 and 6 bits) and ``scales [R, groups]``; bits are 2, 4, 5, 6 or 8."""

    def nvfp4(
        self, values: NDArray[Any], divisor: float, method: Nvfp4Method
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """``codes [R, K/2]`` and ``scales [R, K/16]`` in natural order; K in multiples of 16."""

    def fp8_rows(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """``codes [R, K]`` and ``scales [R]``, bfloat16 words."""


def nvfp4_divisor(largest: float) -> float:
    """The divisor of a parent (the rows that share it) by its largest magnitude: 2688 / largest as a float32, or 1.

    InputError if the magnitude is not finite.
    """
    if not np.isfinite(largest):
        raise InputError("a value is not finite")
    if largest == 0:
        return 1.0
    return float(np.float32(min(E2M1_LARGEST * E4M3_LARGEST / largest, float(np.finfo(np.float32).max))))


def encode_rows(
    values: NDArray[Any],
    format: str,
    encoders: Encoders,
    *,
    divisor: float = 1.0,
    method: Nvfp4Method = "max_abs",
) -> dict[str, NDArray[Any]]:
    """Rows ``[R, K]`` (float32 or bfloat16 words) as pieces of the planes of ``registry.plane_layout``, by plane name.

    Rows r to r + R of the matrix are the bytes from ``r * piece row bytes`` on of each plane, nvfp4's scales included:
    they are in file order, so r and R are multiples of 128. nvfp4's plane ``divisors`` is the caller's. For nvfp4,
    ``divisor`` is that of the whole parent (:func:`nvfp4_divisor`). Errors as :class:`Encoders`.
    """
    if format in registry.GROUPED:
        codes, high, scales = encoders.grouped(values, registry.GROUPED[format].bits)
        return {"codes": codes} | ({} if high is None else {"high": high}) | {"scales": scales}
    if format == registry.NVFP4:
        codes, words = encoders.nvfp4(values, divisor, method)
        return {"codes": codes, "scales": swizzled(words)}
    if format == registry.FP8_ROW:
        codes, row_scales = encoders.fp8_rows(values)
        return {"codes": codes, "scales": row_scales}
    is_bf16 = values.dtype == np.uint16
    if format == registry.BF16:
        return {"values": values if is_bf16 else bf16_of_float32(values)}
    if format == registry.FP32:
        return {"values": float32_of_bf16(values) if is_bf16 else values}
    raise InputError(f"format {format!r} cannot be encoded from values; possible are {', '.join(ENCODED)}")


ENCODED = (registry.BF16, registry.FP32, *registry.GROUPED, registry.NVFP4, registry.FP8_ROW)
"""The formats that :func:`encode_rows` knows."""
