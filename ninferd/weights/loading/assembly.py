"""The tensors of one request: allocated, filled piece by piece, and then the matrices they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.swizzle import unswizzle_scales
from ninferd.weights.formats.registry import FP8_BLOCK, FP8_ROW, GROUPED, NVFP4
from ninferd.weights.loading.checks import ValueChecks
from ninferd.weights.loading.layout import DENSE, Copy, Fill, MatrixLayout
from ninferd.weights.loading.resolve import ResolvedMatrix
from ninferd.weights.loading.transfer import BATCH_BYTES, TORCH_DTYPES, Piece

Tensors = Mapping[str, Tensor]
"""The tensors of a layout by name."""

Generate = Callable[[MatrixLayout, Tensors], None]
"""Writes values into the tensors of a layout: a source without files has it as its method ``generate``."""


class Assembly:
    """A request whose tensors exist on a device."""

    def __init__(self, request: ResolvedMatrix, device: torch.device, generate: Generate | None) -> None:
        self.key = request.key
        self._is_generated = generate is not None
        self._parts = [(layout, _allocated(layout, device)) for layout in request.layouts]
        if generate is not None:
            for layout, tensors in self._parts:
                generate(layout, tensors)

    def pieces(self) -> Iterator[Piece]:
        """Everything that is to be read, from the front of the files to the back."""
        if self._is_generated:
            return
        copies = [(copy, tensors[copy.tensor]) for layout, tensors in self._parts for copy in layout.copies]
        for copy, tensor in sorted(copies, key=lambda pair: pair[0].file_order):
            yield from _pieces_of(copy, tensor)

    def matrices(self, checks: ValueChecks) -> tuple[Matrix, ...]:
        """The matrices, once every piece is delivered; ``checks`` looks at what came from files."""
        if not self._is_generated:
            for layout, tensors in self._parts:
                _complete(layout, tensors)
                checks.ask(self.key, layout, tensors)
        return tuple(_matrix(layout, tensors) for layout, tensors in self._parts)


def _allocated(layout: MatrixLayout, device: torch.device) -> Tensors:
    return {
        name: torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=device)
        for name, spec in layout.tensors.items()
    }


def _pieces_of(copy: Copy, tensor: Tensor) -> Iterator[Piece]:
    dtype, elements = TORCH_DTYPES[copy.dtype], tensor.view(-1)
    most = BATCH_BYTES // dtype.itemsize
    for begin in range(0, copy.count, most):
        part = copy.part(begin, min(begin + most, copy.count))
        yield Piece(part.spans, dtype, elements[part.first : part.first + part.count])


def _complete(layout: MatrixLayout, tensors: Tensors) -> None:
    """What is not a copy of stored bytes."""
    for tensor, first, values in _merged(layout.fills):
        tensors[tensor].view(-1)[first : first + len(values)].copy_(torch.from_numpy(values))
    for begin, end in layout.swizzled_rows:
        rows = tensors["scales"].flatten(0, -2)[begin:end]
        rows.copy_(unswizzle_scales(rows.reshape(-1), end - begin, layout.columns))


def _merged(fills: Iterable[Fill]) -> Iterator[tuple[str, int, NDArray[np.generic]]]:
    """Tensor, flat index and values; neighbours as one, since each is a transfer of its own."""
    tensor, first, pending = "", 0, list[NDArray[np.generic]]()
    end = 0
    for fill in sorted(fills, key=lambda fill: (fill.tensor, fill.first)):
        values = fill.values().reshape(-1)
        if pending and (fill.tensor, fill.first) != (tensor, end):
            yield tensor, first, np.concatenate(pending)
            pending = []
        if not pending:
            tensor, first = fill.tensor, fill.first
        pending.append(values)
        end = fill.first + len(values)
    if pending:
        yield tensor, first, np.concatenate(pending)


def _matrix(layout: MatrixLayout, tensors: Tensors) -> Matrix:
    if layout.format == DENSE:
        return DenseMatrix(**tensors)
    if layout.format == NVFP4:
        return Nvfp4Matrix(**tensors)
    if layout.format == FP8_ROW:
        return Fp8RowMatrix(**tensors)
    if layout.format == FP8_BLOCK:
        return Fp8BlockMatrix(**tensors)
    bits = GROUPED[layout.format].bits
    return GroupedMatrix(bits, layout.columns, tensors["codes"], tensors.get("high"), tensors["scales"])
