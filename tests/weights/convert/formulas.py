"""The encoders of the formats as formulas: what a converted matrix must decode to, independent of the product."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Values = NDArray[np.float32]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GROUPED = {
    "q4_g64_fp16": (7, 8, 64),
    "q5_g64_fp16": (15, 16, 64),
    "q6_g64_fp16": (31, 32, 64),
    "q8_g32_fp16": (127, 127, 32),
}


def encoded(values: Values, format: str) -> Values:
    """Values of a parent after encoding and decoding."""
    if format == "bf16":
        return torch.from_numpy(values).bfloat16().float().numpy()
    if format == "nvfp4":
        return nvfp4(values)
    if format == "fp8_e4m3fn_row_bf16":
        return fp8_rows(values)
    return grouped(values, *GROUPED[format])


def e4m3(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nearest E4M3FN values."""
    return torch.from_numpy(values.astype(np.float32)).to(torch.float8_e4m3fn).double().numpy()


def nvfp4(values: Values) -> Values:
    """d = 2688 / max|W|; scale = E4M3(max|d W| / 6) of 16 columns; value = E2M1 nearest, ties to even, * scale / d."""
    divisor = np.float32(2688 / np.abs(values).max().astype(np.float64))
    scaled = (values * divisor).astype(np.float64).reshape(len(values), -1, 16)
    scale = e4m3((np.abs(scaled).max(axis=2) / 6).astype(np.float32))[:, :, None]
    ratio = np.abs((scaled.astype(np.float32) / np.where(scale == 0, 1, scale).astype(np.float32)).astype(np.float64))
    distance = np.abs(ratio[..., None] - E2M1)
    nearest = distance.min(axis=-1, keepdims=True)
    even = np.where(distance == nearest, np.arange(8) % 2, 2).argmin(axis=-1)
    product = np.sign(scaled) * E2M1[even] * scale
    stored: Values = (product.astype(np.float32) / divisor).reshape(values.shape)
    return stored


def grouped(values: Values, largest: int, smallest: int, group: int) -> Values:
    """s = fp16(max|w| / largest), code = round(w * (1/s)) in float32, of ``group`` columns; value = s * code."""
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // 128) * 128), np.float32)
    padded[:, :columns] = values
    groups = padded.reshape(rows, -1, group)
    scale = (
        (np.abs(groups).max(axis=2, keepdims=True).astype(np.float64) / largest).astype(np.float32).astype(np.float16)
    )
    scale = scale.astype(np.float64)
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)
    code = np.clip(np.rint(groups * inverse), -smallest, largest)
    stored: Values = (scale * code).astype(np.float32).reshape(rows, -1)[:, :columns]
    return stored


def fp8_rows(values: Values) -> Values:
    """s = bf16(max|w| / 448), code = E4M3(w * (1/s)); value = s * code."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    scale = torch.from_numpy(largest / np.float32(448)).bfloat16().double().numpy()
    inverse = (1 / scale).astype(np.float32)
    code = e4m3(np.clip(values * inverse, -448, 448).astype(np.float64))
    stored: Values = (code * scale).astype(np.float32)
    return stored
