"""A source of single matrices, in memory and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from kernels_numba.matrices import Matrix
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.loading.plan import MatrixRequest
from ninferd.weights.loading.resolve import ResolvedMatrix, resolve
from ninferd.weights.parameters.registry import Parameter
from ninferd.weights.stored import RowRun, StoredMatrix

CPU = torch.device("cpu")


class RunsSource:
    """Runs of rows by parameter name."""

    path = Path("some/model")
    config: Mapping[str, Any] = {}

    def __init__(self, runs: Mapping[str, Sequence[RowRun]]) -> None:
        self.runs = runs

    def resource(self, name: str) -> bytes | None:
        return None

    def has(self, parameter: str) -> bool:
        return parameter in self.runs

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        runs = tuple(self.runs[parameter])
        assert sum(run.rows for run in runs) == rows
        return runs

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        raise NotImplementedError

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        raise NotImplementedError

    def require_no_others(self, known: frozenset[str]) -> None:
        raise NotImplementedError


def whole(matrix: StoredMatrix) -> tuple[RowRun, ...]:
    return (RowRun(matrix, 0, matrix.rows),)


def resolved(
    *parameters: Sequence[RowRun], stack: int | None = None, dense: DenseDtype = "<f4", key: str = "some"
) -> ResolvedMatrix:
    """A request of parameters that have these runs."""
    runs = {f"{key}/{index}": each for index, each in enumerate(parameters)}
    named = tuple(
        Parameter(name, (sum(run.rows for run in each), each[0].matrix.columns), None) for name, each in runs.items()
    )
    source: Any = RunsSource(runs)
    return resolve(source, MatrixRequest(key, named, stack), dense)


def loaded(*requests: ResolvedMatrix, device: torch.device = CPU) -> dict[str, tuple[Matrix, ...]]:
    return dict(load_matrices(requests, device, lambda done, total: None))


def allocated_bytes(matrices: Sequence[Matrix]) -> int:
    """Of all tensors, by what torch says of their storage."""
    tensors = [value for matrix in matrices for value in vars(matrix).values() if isinstance(value, torch.Tensor)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
