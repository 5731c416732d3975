"""What a matrix takes on a device, and which bytes of which files become which of its elements. Free of torch.

The loader allocates exactly what is described here, so a process without torch predicts it to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.stored import FileSpan, Plane, RowRun, joined

DenseDtype = Literal["<f4", "<u2"]
"""What plain values become on a device: float32, or bfloat16 (which numpy's spelling knows as ``<u2``)."""

DENSE = "dense"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor on a device; ``dtype`` as in ``Plane``, ``<u2`` being bfloat16."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Copy:
    """Stored elements that become ``count`` elements of a tensor, from its flat index ``first`` on."""

    spans: tuple[FileSpan, ...]
    dtype: str  # as stored; what the tensor has otherwise is converted to
    tensor: str
    first: int
    count: int

    @property
    def size_bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def file_order(self) -> tuple[str, int]:
        """Sorts copies so that files are read from front to back."""
        return (str(self.spans[0].path), self.spans[0].offset) if self.spans else ("", 0)

    def part(self, begin: int, end: int) -> Copy:
        """Elements ``begin`` to ``end`` of this copy."""
        width = np.dtype(self.dtype).itemsize
        spans = Plane(self.dtype, (self.count,), self.spans).part(begin * width, end * width)
        return Copy(spans, self.dtype, self.tensor, self.first + begin, end - begin)


@dataclass(frozen=True)
class Fill:
    """Small values that the host makes for a tensor, from its flat index ``first`` on."""

    tensor: str
    first: int
    values: Callable[[], NDArray[Any]]


@dataclass(frozen=True)
class MatrixLayout:
    """One matrix of ``kernels_numba.matrices``, or a stack of equal ones: its tensors and where their values are."""

    format: str  # of the registry, or DENSE for plain values of any width
    columns: int
    tensors: Mapping[str, TensorSpec]  # by field name
    copies: tuple[Copy, ...]
    fills: tuple[Fill, ...] = ()
    swizzled_rows: tuple[tuple[int, int], ...] = ()  # nvfp4: rows over the stack whose scales arrive in tiles

    @property
    def device_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.tensors.values())

    @property
    def file_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self.copies)


@dataclass(frozen=True)
class StackedRuns:
    """The rows, all of one kind, that a layout is made for."""

    matrices: tuple[tuple[RowRun, ...], ...]  # of each matrix of a stack, or of the only one
    rows: int  # of each matrix
    columns: int
    is_stack: bool

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Leading dimensions of the tensors."""
        return (len(self.matrices), self.rows) if self.is_stack else (self.rows,)

    @property
    def placed(self) -> tuple[tuple[int, RowRun], ...]:
        """The runs, as few as possible, each with its first row over the whole stack."""
        placed, first = [], 0
        for run in joined(tuple(run for matrix in self.matrices for run in matrix)):
            placed.append((first, run))
            first += run.rows
        return tuple(placed)

    def row_copies(self, plane: str, tensor: str, per_row: int) -> tuple[Copy, ...]:
        """Copies of a plane of ``per_row`` elements for each row."""
        return tuple(row_copy(run, run.matrix.planes[plane], tensor, first, per_row) for first, run in self.placed)


def row_copy(run: RowRun, plane: Plane, tensor: str, first_row: int, per_row: int) -> Copy:
    """The elements of a run in a row-major plane, for a tensor of as many elements per row."""
    row_bytes = per_row * np.dtype(plane.dtype).itemsize
    spans = plane.part(run.begin * row_bytes, run.end * row_bytes)
    return Copy(spans, plane.dtype, tensor, first_row * per_row, run.rows * per_row)
