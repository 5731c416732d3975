"""Blocks of source rows to the planes of an artifact's tensor: encoded, or kept as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.convert.blocks import BlockReader, Planes, numbers_of_rows
from ninferd.weights.formats.decode import decode_planes
from ninferd.weights.formats.encoders import Encoders, Nvfp4Method, encode_rows
from ninferd.weights.formats.minifloat import E4M3_LARGEST_WORD, bf16_of_float32, float32_of_bf16
from ninferd.weights.formats.registry import FP8_ROW, NVFP4, NVFP4_TILE_ROWS
from ninferd.weights.formats.swizzle import swizzled, unswizzled
from ninferd.weights.stored import RowRun

COMPARED_ROWS = 16  # of each block, for the reported error

Block = Sequence[RowRun]


@dataclass(frozen=True)
class Deviation:
    """Squared errors of some rows against the source."""

    rows: int = 0
    squared_error: float = 0.0
    squared_value: float = 0.0

    def __add__(self, other: Deviation) -> Deviation:
        return Deviation(
            self.rows + other.rows,
            self.squared_error + other.squared_error,
            self.squared_value + other.squared_value,
        )

    @property
    def relative_rms(self) -> float:
        """Root mean square of the error over that of the values."""
        return (self.squared_error / self.squared_value) ** 0.5 if self.squared_value else 0.0


@dataclass(frozen=True)
class EncodedBlock:
    """Rows as an artifact holds them, each plane C-contiguous."""

    planes: Planes
    deviation: Deviation


class BlockEncoder:
    """Encodes blocks of one conversion; safe to use from several threads."""

    def __init__(self, reader: BlockReader, encoders: Encoders, method: Nvfp4Method) -> None:
        self._reader = reader
        self._encoders = encoders
        self._method = method

    def largest(self, block: Block) -> float:
        """The largest magnitude of a block."""
        return self._encoders.largest(self._reader.values(block))

    def encode(self, block: Block, format: str, divisor: float) -> EncodedBlock:
        """Quantise a block; ``divisor`` is that of the whole parent, for nvfp4. InputError names file and tensor."""
        values = self._reader.values(block)
        try:
            planes = encode_rows(values, format, self._encoders, divisor=divisor, method=self._method)
        except InputError as error:
            raise InputError(f"{_place(block)}: cannot be stored as {format}: {error}") from None
        return EncodedBlock(planes, _deviation(planes, format, values, np.full(len(values), divisor, np.float32)))

    def keep(self, block: Block, format: str) -> EncodedBlock:
        """Codes and scales of the source, which has this format. InputError if a scale is not one."""
        pieces = [_kept_planes(self._reader.planes(run), run) for run in block]
        planes = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        _require_sound(planes, format, block)
        if format == NVFP4:
            planes["scales"] = swizzled(planes["scales"])
        values = self._reader.values([_first_rows(block)])
        return EncodedBlock(planes, _deviation(planes, format, values, _divisors(block[0])))


def divisor_of(run: RowRun) -> float | None:
    """The nvfp4 divisor of a run as an artifact holds it; None if its rows have several."""
    divisors = set(_divisors(run).tolist())
    return divisors.pop() if len(divisors) == 1 else None


def _divisors(run: RowRun) -> NDArray[np.float32]:
    """Of each row; ModelOpt's factor becomes the float32 next to its inverse."""
    matrix = run.matrix
    divisors = np.ones(run.rows, np.float32)
    if matrix.divisors:
        divisors = numbers_of_rows(matrix, matrix.divisors, run)
    if matrix.factors:
        divisors = divisors / numbers_of_rows(matrix, matrix.factors, run)
    return divisors


def _kept_planes(planes: Planes, run: RowRun) -> Planes:
    if run.matrix.format == FP8_ROW and run.matrix.factors:
        factors = numbers_of_rows(run.matrix, run.matrix.factors, run)
        if "scales" in planes:
            factors = float32_of_bf16(planes["scales"]) * factors
        return {"codes": planes["codes"], "scales": bf16_of_float32(factors)}
    return planes


def _require_sound(planes: Planes, format: str, block: Block) -> None:
    if format == NVFP4 and planes["scales"].max() > E4M3_LARGEST_WORD:
        row = int(np.argmax((planes["scales"] > E4M3_LARGEST_WORD).any(axis=1)))
        raise InputError(f"{_place(block, row)}: a block scale is negative or not a number")
    if format == FP8_ROW:
        scales = float32_of_bf16(planes["scales"])
        bad = ~(np.isfinite(scales) & (scales >= 0)) | ((planes["codes"] & 0x7F) == 0x7F).any(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{_place(block, row)}: the scale is {scales[row]}, or a value is not a number")


def _deviation(planes: Planes, format: str, values: NDArray[Any], divisors: NDArray[np.float32]) -> Deviation:
    """Of the first rows from their ``values``."""
    rows = min(COMPARED_ROWS, len(values))
    compared = {name: plane[:rows] for name, plane in planes.items()}
    if format == NVFP4:
        compared["scales"] = unswizzled(planes["scales"][:NVFP4_TILE_ROWS])[:rows]
    stored = decode_planes(format, values.shape[1], compared)
    if format == NVFP4:
        stored = stored / divisors[:rows, None]
    wanted = values[:rows]
    wanted = (float32_of_bf16(wanted) if wanted.dtype == np.uint16 else wanted).astype(np.float64)
    return Deviation(rows, float(((stored - wanted) ** 2).sum()), float((wanted**2).sum()))


def _first_rows(block: Block) -> RowRun:
    return RowRun(block[0].matrix, block[0].begin, min(block[0].begin + COMPARED_ROWS, block[0].end))


def _place(block: Block, row: int | None = None) -> str:
    """File, tensor and first row of a block, or one row of it counted from there."""
    for run in block:
        if row is None or row < run.rows:
            return f"{run.matrix.path}: {run.matrix.name}: " + (
                f"row {run.begin + row}" if row is not None else f"in the block from row {run.begin}"
            )
        row -= run.rows
    raise AssertionError("the row is in the block")
