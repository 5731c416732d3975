"""Quantisers of weights in plain torch, for any device, bit for bit those of ``ninferd.weights.formats.encode``.

Every division is of two tensors on the device: by a number, torch would multiply with its reciprocal on CUDA.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
TIES_GO_DOWN = (True, False, True, False, True, False, True)


class TorchEncoders:
    """``ninferd.weights.formats.encoders.Encoders`` on a torch device; values and planes are copied there and back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        bounds = torch.tensor(E2M1_BOUNDS)
        above = torch.nextafter(bounds, torch.tensor(torch.inf))
        self._bounds = torch.where(torch.tensor(TIES_GO_DOWN), above, bounds).to(device)
        self._magnitudes = torch.tensor(E2M1_MAGNITUDES, device=device)

    def largest(self, values: NDArray[Any]) -> float:
        return float(self._values(values).abs().max())

    def grouped(
        self, values: NDArray[Any], bits: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, NDArray[np.float16]]:
        smallest, largest = code_range(bits)
        x = self._values(values)
        rows, columns = x.shape
        x = torch.nn.functional.pad(x, (0, -columns % COLUMN_MULTIPLE)).view(rows, -1, GROUP_OF_BITS[bits])
        found = x.abs().amax(2)
        _require_encodable(found, FLOAT16_LARGEST * largest)
        scales = (found / self._number(largest)).half()
        scales = torch.where((scales == 0) & (found > 0), self._number(2.0**-24).half(), scales)
        inverse = _reciprocal(scales.float())
        lanes = (x * inverse[:, :, None]).clamp_(smallest, largest).round_().to(torch.int8).view(rows, -1)
        lanes = lanes.view(torch.uint8)
        high = None
        if bits in (5, 6):
            high = _joined((lanes >> 4) & ((1 << (bits - 4)) - 1), bits - 4).cpu().numpy()
        codes = lanes if bits == 8 else _joined(lanes & ((1 << min(bits, 4)) - 1), min(bits, 4))
        return codes.cpu().numpy(), high, scales.cpu().numpy()

    def nvfp4(
        self, values: NDArray[Any], divisor: float, method: Nvfp4Method
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        x = self._values(values)
        rows, columns = x.shape
        x = x.view(rows, -1, NVFP4_BLOCK)
        _require_encodable(x.abs().amax(2), FLOAT32_LARGEST)
        y = x * divisor
        found = y.abs().amax(2)
        words = _e4m3_words((found / self._number(6)).clamp_(max=448))
        if method != "max_abs":
            words = torch.where((words == 0) & (found > 0), words.new_ones(()), words)
        if method == "least_error":
            words = self._least_error(y.abs(), words)
        magnitude, is_zero = self._codes(y.abs(), words)
        codes = torch.where(is_zero, 0, magnitude + 8 * torch.signbit(y)).to(torch.uint8).view(rows, columns)
        return _joined(codes, 4).cpu().numpy(), words.cpu().numpy()

    def fp8_rows(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        x = self._values(values).bfloat16().float()
        found = x.abs().amax(1)
        _require_encodable(found[:, None], FLOAT32_LARGEST)
        words = (found / self._number(448)).bfloat16().view(torch.int16)
        words = torch.where((words == 0) & (found > 0), words.new_ones(()), words)
        scaled = x * _reciprocal(words.view(torch.bfloat16).float())[:, None]
        return _e4m3_words(scaled.clamp_(-448, 448)).cpu().numpy(), words.cpu().numpy().view(np.uint16)

    def _values(self, values: NDArray[Any]) -> Tensor:
        """float32 on the device, by a page-locked copy where that is CUDA."""
        if values.dtype not in (np.uint16, np.float32):
            raise TypeError(f"values are {values.dtype}, not float32 or bfloat16 words")
        dtype = torch.bfloat16 if values.dtype == np.uint16 else torch.float32
        host = torch.empty(values.shape, dtype=dtype, pin_memory=self._device.type == "cuda")
        view = host.view(torch.uint16) if dtype == torch.bfloat16 else host
        np.copyto(view.numpy(), values)
        return host.to(self._device, non_blocking=True).float()

    def _number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float32, device=self._device)

    def _codes(self, magnitudes: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Codes 0 to 7 of blocks ``[R, B, 16]`` and which blocks ``[R, B, 1]`` have the scale 0."""
        scales = words.view(torch.float8_e4m3fn).float()[:, :, None]
        is_zero = scales == 0
        quotient = magnitudes / torch.where(is_zero, 1.0, scales)
        codes = torch.bucketize(quotient, self._bounds, out_int32=True, right=True)
        return codes.masked_fill_(is_zero, 0), is_zero

    def _least_error(self, magnitudes: Tensor, words: Tensor) -> Tensor:
        best, least = words, self._squared_error(magnitudes, words)
        for step in NVFP4_STEPS:
            tried = (words.to(torch.int16) + step).clamp_(0, 0x7E).to(torch.uint8)
            error = self._squared_error(magnitudes, tried)
            best = torch.where(error < least, tried, best)
            least = torch.minimum(error, least)
        return best

    def _squared_error(self, magnitudes: Tensor, words: Tensor) -> Tensor:
        """Summed in halves, as the reference does."""
        codes, _ = self._codes(magnitudes, words)
        quantised = self._magnitudes[codes] * words.view(torch.float8_e4m3fn).float()[:, :, None]
        total = (magnitudes - quantised).square_()
        while total.shape[2] > 1:
            half = total.shape[2] // 2
            total = total[:, :, :half] + total[:, :, half:]
        return total[:, :, 0]


def _require_encodable(found: Tensor, limit: float) -> None:
    bad = ~(found <= limit).all(1)
    require_no_bad_row(int(bad.nonzero()[0]) if bool(bad.any()) else -1, limit)


def _reciprocal(scales: Tensor) -> Tensor:
    inverse = (torch.ones_like(scales) / scales).clamp_(max=FLOAT32_LARGEST)
    return torch.where(scales == 0, 0.0, inverse)


def _e4m3_words(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _joined(lanes: Tensor, width: int) -> Tensor:
    """Bytes of a little-endian stream of ``width`` bits per lane (1, 2 or 4)."""
    per_byte = 8 // width
    packed = lanes[:, ::per_byte].clone(memory_format=torch.contiguous_format)
    for lane in range(1, per_byte):
        packed |= lanes[:, lane::per_byte] << (lane * width)
    return packed
