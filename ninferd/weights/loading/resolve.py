"""From a request to layouts: where the rows lie, and as which matrices they are loaded. Free of torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import prod

from ninferd.errors import InputError
from ninferd.weights.loading.kinds import kind_of, lay_out
from ninferd.weights.loading.layout import DenseDtype, MatrixLayout, StackedRuns
from ninferd.weights.loading.plan import EMBEDDING, HEAD, MatrixRequest, TextPlan
from ninferd.weights.parameters.registry import Parameter
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import RowRun, joined

_Segments = list[tuple[str, tuple[RowRun, ...]]]  # (kind, neighbouring rows of it)


@dataclass(frozen=True)
class ResolvedMatrix:
    """A request and the matrices that its rows become: one for each run of neighbouring rows of one format."""

    key: str
    layouts: tuple[MatrixLayout, ...]

    @property
    def device_bytes(self) -> int:
        return sum(layout.device_bytes for layout in self.layouts)

    @property
    def file_bytes(self) -> int:
        return sum(layout.file_bytes for layout in self.layouts)

    @property
    def file_order(self) -> tuple[str, int]:
        """Sorts requests so that files are read from front to back."""
        return min((copy.file_order for layout in self.layouts for copy in layout.copies), default=("", 0))

    def has_rows_of(self, other: ResolvedMatrix) -> bool:
        """Whether both are made of the same bytes of files."""
        copies = [layout.copies for layout in self.layouts]
        is_in_files = all(copy.spans for each in copies for copy in each)
        return is_in_files and copies == [layout.copies for layout in other.layouts]


@dataclass(frozen=True)
class ResolvedPlan:
    """All weights of a text model: where they lie, and what they take on a device."""

    matrices: tuple[ResolvedMatrix, ...]  # without the head where it has the embedding's rows
    arrays: tuple[Parameter, ...]

    @property
    def device_bytes(self) -> int:
        """What the loader allocates, to the byte."""
        return sum(matrix.device_bytes for matrix in self.matrices) + sum(4 * prod(each.shape) for each in self.arrays)

    @property
    def file_bytes(self) -> int:
        """What is read of the files for the matrices."""
        return sum(matrix.file_bytes for matrix in self.matrices)


def resolve_plan(source: ModelSource, plan: TextPlan, dense: DenseDtype) -> ResolvedPlan:
    """Where all weights lie; reads none.

    Raises InputError if a parameter is missing, misshapen, in a format that it cannot have, or left over.
    """
    matrices = {request.key: resolve(source, request, dense) for request in plan.matrices}
    for parameter in plan.arrays:
        source.require_array(parameter.name, parameter.shape)
    source.require_no_others(plan.parameters | {HEAD})  # a tied model may come with a copy of its embedding
    if HEAD in matrices and matrices[HEAD].has_rows_of(matrices[EMBEDDING]):
        del matrices[HEAD]
    return ResolvedPlan(tuple(matrices.values()), plan.arrays)


def resolve(source: ModelSource, request: MatrixRequest, dense: DenseDtype) -> ResolvedMatrix:
    """Where the rows of ``request`` lie; reads nothing.

    Raises InputError for what the source lacks or has otherwise, and for experts of one layer in different formats.
    """
    matrices = [_segments(source, parameters) for parameters in request.matrices]
    columns = request.parameters[0].shape[1]
    first = _pattern(matrices[0])
    for expert, segments in enumerate(matrices):
        if _pattern(segments) != first:
            raise InputError(
                f"{source.path}: {request.key}: matrix {expert} of the stack is stored as {_shown(segments)}, "
                f"the first one as {_shown(matrices[0])}; all must be alike"
            )
    layouts = []
    for index, (kind, rows) in enumerate(first):
        runs = StackedRuns(
            tuple(segments[index][1] for segments in matrices), rows, columns, is_stack=request.stack is not None
        )
        layouts.append(lay_out(kind, runs, dense))
    return ResolvedMatrix(request.key, tuple(layouts))


def _segments(source: ModelSource, parameters: Iterable[Parameter]) -> _Segments:
    runs: list[RowRun] = []
    for parameter in parameters:
        rows, columns = parameter.shape
        runs += source.matrix(parameter.name, rows, columns)
    return [(kind, tuple(each)) for kind, each in groupby(joined(tuple(runs)), kind_of)]


def _pattern(segments: _Segments) -> list[tuple[str, int]]:
    return [(kind, sum(run.rows for run in runs)) for kind, runs in segments]


def _shown(segments: _Segments) -> str:
    return ", ".join(f"{rows} rows of {kind}" for kind, rows in _pattern(segments))
