"""Scales that no encoder writes: found while a matrix is loaded, before it is used."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninferd.errors import InputError
from ninferd.weights.formats.registry import FP8_BLOCK, FP8_ROW, GROUPED, NVFP4
from ninferd.weights.loading.layout import Copy, MatrixLayout

LARGEST_SCALE_WORD = 0x7E  # 448 in E4M3; the words above are NaN and the negative ones


def require_possible_scales(key: str, layout: MatrixLayout, tensors: Mapping[str, Tensor]) -> None:
    """InputError naming the first scale that is not finite or, in NVFP4 and FP8 rows, negative, and where it lies.

    Some encoders write negative scales of grouped integers. Plain values are not looked at. Takes no memory to speak
    of, but waits for the device.
    """
    if layout.format not in (NVFP4, FP8_ROW, FP8_BLOCK, *GROUPED):
        return
    name = "multiplier" if layout.format == FP8_ROW else "scales"
    scales = _written(layout, tensors[name].flatten()) if layout.format == FP8_BLOCK else tensors[name].flatten()
    low, high = (float(each) for each in scales.aminmax())  # NaN if there is one
    lowest, highest = _limits(layout.format, scales)
    if lowest <= low and high <= highest:
        return
    flat = scales.cpu()
    wrong = ~((flat >= lowest) & (flat <= highest))
    first = int(wrong.nonzero()[0])
    found = f"0x{int(flat[first]):02x}" if layout.format == NVFP4 else f"{float(flat[first])}"
    needed = "finite" if lowest < 0 else "finite and not negative"
    raise InputError(
        f"{_place(layout, name, first)}: weights {key}: {int(wrong.sum())} of {len(flat)} scales are wrong, "
        f"the first is {found}; it must be {needed}"
    )


def _written(layout: MatrixLayout, scales: Tensor) -> Tensor:
    """Scales of blocks, with 0 where a matrix of a stack has fewer than there is room for."""
    written = torch.zeros_like(scales)
    for copy in layout.copies:
        if copy.tensor == "scales":
            span = slice(copy.first, copy.first + copy.count)
            written[span] = scales[span]
    return written


def _limits(format: str, scales: Tensor) -> tuple[float, float]:
    if format == NVFP4:
        return 0, LARGEST_SCALE_WORD
    largest = torch.finfo(scales.dtype).max
    return (0 if format == FP8_ROW else -largest), largest


def _place(layout: MatrixLayout, tensor: str, index: int) -> str:
    """File, and the bytes that the element was copied with (scales of nvfp4 are in another order there)."""
    for copy in layout.copies:
        if copy.tensor == tensor and copy.first <= index < copy.first + copy.count:
            return _bytes(copy)
    return str(layout.copies[0].spans[0].path)


def _bytes(copy: Copy) -> str:
    first, last = copy.spans[0], copy.spans[-1]
    return f"{first.path}: bytes {first.offset} to {last.offset + last.size_bytes}"
