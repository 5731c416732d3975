"""What a benchmark prints, for people line by line, for machines as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from kernels_numba.report import OpsReport
from ninferd.benchmarks.ceilings import Ceilings

SCHEMA: Final = 1
"""Of the JSON; grows with every change that is not an addition."""

Benchmark = Literal["kernels", "decode", "prefill", "start"]


class Figure(msgspec.Struct, frozen=True):
    """One measured line. A subclass says what its columns are."""

    COLUMNS: ClassVar[Sequence[tuple[str, int]]]
    """Heading and width of each column, negative if its text begins at the left."""

    def cells(self) -> Sequence[str]:
        """The texts of the columns."""
        raise NotImplementedError

    @classmethod
    def heading(cls) -> str:
        """The line above the columns."""
        return _line([heading for heading, _ in cls.COLUMNS], cls.COLUMNS)

    def line(self) -> str:
        """For people."""
        return _line(self.cells(), self.COLUMNS)


class Skipped(msgspec.Struct, frozen=True):
    """What was asked for and could not be measured."""

    what: str
    reason: str

    def line(self) -> str:
        return f"{self.what}: not measured: {self.reason}"


class Where(msgspec.Struct, frozen=True):
    """On what."""

    device: str
    torch: str
    ninferd: str
    time: str  # ISO 8601, when it began


class Model(msgspec.Struct, frozen=True):
    """Of what."""

    name: str
    architecture: str
    weights_dtype: str
    weights_bytes: int
    ops: OpsReport  # who serves which ops, and what the self-test found


class Report(msgspec.Struct):
    """The JSON of one run, see docs/performance.md."""

    benchmark: Benchmark
    where: Where
    artifact: str
    model: Model | None  # of a start, which loads it elsewhere
    ceilings: Ceilings
    figures: list[Any] = msgspec.field(default_factory=list)  # of one subclass of Figure
    skipped: list[Skipped] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)  # as the journal has them: kernels that do not serve
    schema: int = SCHEMA

    def json(self) -> str:
        """Indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


def percent(share: float | None) -> str:
    """``81.4 %``, or a dash for what has no ceiling."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _line(cells: Sequence[str], columns: Sequence[tuple[str, int]]) -> str:
    padded = (
        cell.ljust(-width) if width < 0 else cell.rjust(width) for cell, (_, width) in zip(cells, columns, strict=True)
    )
    return "  ".join(padded).rstrip()
