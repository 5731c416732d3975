"""Values that no encoder writes, found while matrices are loaded: numbers that are not finite, codes of NaN, scales
below zero.

The question is asked on the device, matrix by matrix, and the answers are read together, so that a load waits once.
What exactly is wrong is looked up in the files, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ninferd.errors import InputError
from ninferd.weights.formats.registry import FP8_BLOCK, FP8_ROW, NVFP4
from ninferd.weights.loading.layout import DENSE, Copy, MatrixLayout
from ninferd.weights.loading.transfer import TORCH_DTYPES
from ninferd.weights.stored import Plane

LARGEST_SCALE_WORD = 0x7E  # 448 in E4M3; the words above are NaN and the negative ones
E4M3_MAGNITUDE = 0x7F  # without the sign; as a whole it is NaN
CHUNK_ELEMENTS = 1 << 22  # on the host
CHUNK_CODES = 1 << 24  # on the device, where a copy of them is made


class ValueChecks:
    """Of all matrices of a load."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, MatrixLayout, _Range, Tensor]] = []

    def ask(self, key: str, layout: MatrixLayout, tensors: Mapping[str, Tensor]) -> None:
        """Begin to look at the tensors of a layout, once they are complete. Takes no memory to speak of."""
        for values in _ranges(layout):
            self._asked.append((key, layout, values, _are_possible(layout, values, tensors[values.tensor])))

    def require(self) -> None:
        """InputError naming file, byte and weights of the first value that cannot be. Waits for the device."""
        answers = torch.stack([are_possible for *_, are_possible in self._asked]).tolist() if self._asked else []
        for (key, layout, values, _), are_possible in zip(self._asked, answers, strict=True):
            if not are_possible:
                raise _refusal(key, layout, values)


@dataclass(frozen=True)
class _Range:
    """What the values of a tensor may be; NaN never."""

    tensor: str
    lowest: float
    highest: float

    @property
    def needed(self) -> str:
        if self.tensor == "codes":
            return "a number"
        return "finite and not negative" if self.lowest == 0 else "finite"


def _ranges(layout: MatrixLayout) -> Iterator[_Range]:
    """Some encoders write negative scales of blocks and of grouped integers."""
    if layout.format == DENSE:
        yield _finite(layout, "values")
    elif layout.format == NVFP4:
        yield _Range("scales", 0, LARGEST_SCALE_WORD)
    elif layout.format == FP8_ROW:
        yield _Range("multiplier", 0, _finite(layout, "multiplier").highest)
    else:
        yield _finite(layout, "scales")
    if layout.format in (FP8_ROW, FP8_BLOCK):
        yield _Range("codes", 0, E4M3_MAGNITUDE - 1)


def _finite(layout: MatrixLayout, tensor: str) -> _Range:
    largest = torch.finfo(TORCH_DTYPES[layout.tensors[tensor].dtype]).max
    return _Range(tensor, -largest, largest)


def _are_possible(layout: MatrixLayout, values: _Range, tensor: Tensor) -> Tensor:
    """A bool on the device; infinities are out of every range and NaN makes both ends NaN."""
    flat = tensor.flatten()
    if values.tensor == "codes":
        magnitudes = [(chunk & E4M3_MAGNITUDE).amax() for chunk in torch.split(flat, CHUNK_CODES)]
        return torch.stack(magnitudes).amax() <= values.highest
    if layout.format == FP8_BLOCK:
        flat = _written(layout, flat)
    low, high = flat.aminmax()
    return (low >= values.lowest) & (high <= values.highest)


def _written(layout: MatrixLayout, scales: Tensor) -> Tensor:
    """Scales of blocks, with 0 where a matrix of a stack has fewer than there is room for."""
    written = torch.zeros_like(scales)
    for copy in layout.copies:
        if copy.tensor == "scales":
            span = slice(copy.first, copy.first + copy.count)
            written[span] = scales[span]
    return written


def _refusal(key: str, layout: MatrixLayout, values: _Range) -> InputError:
    """Counts in the files, in their order."""
    total, wrong, place, found = 0, 0, "", ""
    dtype = layout.tensors[values.tensor].dtype
    for copy, stored in _stored(layout, values.tensor):
        loaded = stored & E4M3_MAGNITUDE if values.tensor == "codes" else stored.to(TORCH_DTYPES[dtype])
        is_wrong = ~((loaded >= values.lowest) & (loaded <= values.highest))
        total += len(loaded)
        if is_wrong.any() and not wrong:
            at = int(is_wrong.nonzero()[0])
            place = f"{copy.spans[0].path}: byte {copy.part(at, at + 1).spans[0].offset}" if copy.spans else ""
            found = f"0x{int(stored[at]):02x}" if stored.dtype == torch.uint8 else f"{float(stored[at])}"
        wrong += int(is_wrong.sum())
    place = place or str(layout.copies[0].spans[0].path)
    what, needed = "codes" if values.tensor == "codes" else "scales", values.needed
    if layout.format == DENSE:
        what, needed = "values", f"finite in {str(TORCH_DTYPES[dtype]).removeprefix('torch.')}"
    return InputError(
        f"{place}: weights {key}: {wrong} of {total} {what} are wrong, the first is {found}; it must be {needed}"
    )


def _stored(layout: MatrixLayout, tensor: str) -> Iterator[tuple[Copy, Tensor]]:
    """The elements of a tensor as they are stored, piece by piece; those that the host made come without a span."""
    for copy in sorted((copy for copy in layout.copies if copy.tensor == tensor), key=lambda copy: copy.file_order):
        for begin in range(0, copy.count, CHUNK_ELEMENTS):
            part = copy.part(begin, min(begin + CHUNK_ELEMENTS, copy.count))
            array: Any = Plane(part.dtype, (part.count,), part.spans).array()
            yield part, torch.from_numpy(array.view(np.uint8).copy()).view(TORCH_DTYPES[part.dtype])
    for fill in layout.fills:
        if fill.tensor == tensor:
            values = fill.values().reshape(-1)
            yield Copy((), "u1", tensor, fill.first, len(values)), torch.from_numpy(values)
