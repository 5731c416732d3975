"""Weight matrices on a device, in natural row-major order: what a loader builds and ``pack_linear`` takes.

Every kind holds ``rows x columns`` weights, or a stack of such matrices along a leading dimension of each tensor.
Values follow ninferd.weights.formats; bits inside a byte are those of the artifact format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Planes:
    """What all kinds share: they are made of tensors whose rows lie along one axis, behind those of the stack."""

    @property
    def planes(self) -> dict[str, Tensor]:
        """The tensors by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def first_plane(self) -> Tensor:
        """The values or codes, ``[..., N, K or bytes]``."""
        return next(iter(self.planes.values()))

    @property
    def stack(self) -> tuple[int, ...]:
        """Leading dimensions: () for one matrix."""
        return tuple(self.first_plane.shape[:-2])

    @property
    def rows(self) -> int:
        return self.first_plane.shape[-2]

    @property
    def device(self) -> torch.device:
        return self.first_plane.device

    @property
    def size_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes.values())

    def __getitem__(self, index: int) -> Self:
        """One matrix of a stack; a view."""
        return self._with({name: plane[index] for name, plane in self.planes.items()})

    def select_rows(self, rows: slice | Tensor) -> Self:
        """Some rows of one matrix: a view of a slice, a copy of integer indices in their order."""
        return self._with({name: self.planes[name][rows] for name in self._row_planes()})

    def _row_planes(self) -> list[str]:
        """Planes that have a row for each row of the matrix."""
        return list(self.planes)

    def _with(self, planes: dict[str, Any]) -> Self:
        return replace(self, **planes)


@dataclass(frozen=True)
class DenseMatrix(_Planes):
    """Plain values."""

    values: Tensor  # float32 or bfloat16 [..., N, K]

    @property
    def columns(self) -> int:
        return self.values.shape[-1]


@dataclass(frozen=True)
class Nvfp4Matrix(_Planes):
    """``W = E2M1(code) * E4M3(scale of 16 columns) * multiplier of the row``; low nibble is the even column."""

    codes: Tensor  # uint8 [..., N, K/2]
    scales: Tensor  # uint8 [..., N, K/16], E4M3FN words
    multiplier: Tensor  # float32 [..., N]

    @property
    def columns(self) -> int:
        return 2 * self.codes.shape[-1]


@dataclass(frozen=True)
class Fp8RowMatrix(_Planes):
    """``W = E4M3(code) * multiplier of the row``."""

    codes: Tensor  # uint8 [..., N, K], E4M3FN words
    multiplier: Tensor  # float32 [..., N]

    @property
    def columns(self) -> int:
        return self.codes.shape[-1]


@dataclass(frozen=True)
class Fp8BlockMatrix(_Planes):
    """``W = E4M3(code) * scale[block of the row, k // 128]``."""

    codes: Tensor  # uint8 [..., N, K], E4M3FN words
    scales: Tensor  # float32 [..., B, ceil(K/128)]
    block_of_row: Tensor  # int32 [..., N], rows of ``scales``

    @property
    def columns(self) -> int:
        return self.codes.shape[-1]

    def _row_planes(self) -> list[str]:
        return ["codes", "block_of_row"]


@dataclass(frozen=True)
class GroupedMatrix(_Planes):
    """``W = scale of the group * code``, two's complement codes of ``bits`` bits in groups along K."""

    bits: int  # 2, 4, 5, 6 or 8
    columns: int  # K; codes and scales are padded to a multiple of 128 columns
    codes: Tensor  # uint8 [..., N, groups * 32]
    high: Tensor | None  # uint8 [..., N, groups * 8 (q5) or 16 (q6)]
    scales: Tensor  # float16 [..., N, groups]

    @property
    def group_columns(self) -> int:
        """Columns that share a scale; their low bits fill 32 bytes."""
        return {2: 128, 4: 64, 5: 64, 6: 64, 8: 32}[self.bits]


Matrix = DenseMatrix | Nvfp4Matrix | Fp8RowMatrix | Fp8BlockMatrix | GroupedMatrix


def joined(matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
    """The same rows in as few matrices as possible: neighbours of one format become one.

    ValueError unless all have the same columns and stack.
    """
    if len({(matrix.columns, matrix.stack) for matrix in matrices}) != 1:
        shapes = ", ".join(f"{[*matrix.stack, matrix.rows, matrix.columns]}" for matrix in matrices)
        raise ValueError(f"matrices of one product must have the same columns and stack, these are {shapes or 'none'}")
    runs: list[list[Matrix]] = []
    for matrix in matrices:
        if runs and _format(runs[-1][0]) == _format(matrix):
            runs[-1].append(matrix)
        else:
            runs.append([matrix])
    return tuple(run[0] if len(run) == 1 else _concatenated(run) for run in runs)


def _format(matrix: Matrix) -> tuple[object, ...]:
    return (type(matrix), *(plane.dtype for plane in matrix.planes.values()), getattr(matrix, "bits", None))


def _concatenated(run: list[Matrix]) -> Matrix:
    axis = len(run[0].stack)
    planes = {name: torch.cat([matrix.planes[name] for matrix in run], axis) for name in run[0].planes}
    if isinstance(run[0], Fp8BlockMatrix):
        counts = [matrix.planes["scales"].shape[axis] for matrix in run]
        firsts = [sum(counts[:index]) for index in range(len(run))]
        blocks = [matrix.planes["block_of_row"] + first for matrix, first in zip(run, firsts, strict=True)]
        planes["block_of_row"] = torch.cat(blocks, axis)
    fields_of_planes: dict[str, Any] = planes
    return replace(run[0], **fields_of_planes)
