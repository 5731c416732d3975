"""Values that no encoder writes: NaN and infinite numbers, illegal codes, padding that is not zero.

Whether a stored value may be what it is follows from its format alone; planes are read in chunks of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats import registry
from ninferd.weights.formats.packing import unpack
from ninferd.weights.formats.registry import GROUPED, NVFP4_BLOCK, NVFP4_TILE_COLUMNS, NVFP4_TILE_ROWS
from ninferd.weights.stored import Plane, StoredMatrix
from ninferd.weights.verify.findings import Findings

CHUNK_BYTES = 16 << 20
MAX_ZERO_ROWS = 1000  # of a matrix whose codes are looked at

IsWrong = Callable[[NDArray[Any]], NDArray[np.bool_]]
OnBytes = Callable[[int], None]
"""Called with the bytes looked at since the last call."""

_BF16_EXPONENT = np.uint16(0x7F80)
_E4M3_MAGNITUDE = np.uint8(0x7F)
_LARGEST_SCALE_WORD = np.uint8(0x7E)  # 448; beyond are NaN and the negative ones
_T2_LOW_BITS = np.uint8(0x55)


def scanned_planes(matrix: StoredMatrix) -> dict[str, tuple[IsWrong, str]]:
    """The planes of which not every bit pattern is written, each with its test and what a wrong value is called."""
    tests: dict[str, tuple[IsWrong, str]] = {}
    if "values" in matrix.planes:
        if matrix.format == registry.BF16:
            tests["values"] = _bf16_not_finite, "not finite"
        elif matrix.format != registry.INT32:
            tests["values"] = _not_finite, "not finite"
    elif matrix.format == registry.NVFP4:
        tests["scales"] = _no_scale_word, "no finite scale of at least 0 (words 0x00 to 0x7e)"
    elif matrix.format == registry.FP8_ROW:
        tests["codes"] = _e4m3_nan, "NaN"
        tests["scales"] = _bf16_negative_or_not_finite, "no finite scale of at least 0"
    elif matrix.format == registry.FP8_BLOCK:
        tests["codes"] = _e4m3_nan, "NaN"
        is_bf16 = matrix.planes["scales"].dtype == "<u2"
        tests["scales"] = (_bf16_not_finite if is_bf16 else _not_finite), "not finite"
    elif matrix.format in GROUPED:
        tests["scales"] = _not_finite, "not finite"
        if matrix.format == registry.T2:
            tests["codes"] = _t2_illegal, "no code of -1, 0 and 1 (the bits 10)"
        elif matrix.format == registry.Q8:
            tests["codes"] = _q8_unused, "-128, which no encoder writes"
    return {name: test for name, test in tests.items() if name in matrix.planes}


def scanned_bytes(matrix: StoredMatrix) -> int:
    """How much ``scan`` reads of a matrix, but for rows of scale 0."""
    return sum(matrix.planes[name].size_bytes for name in scanned_planes(matrix))


def scan(matrix: StoredMatrix, findings: Findings, on_bytes: OnBytes) -> None:
    """Look at all values of a matrix. Raises InputError if the bytes cannot be read."""
    for name, (is_wrong, what) in scanned_planes(matrix).items():
        _scan_plane(matrix, name, is_wrong, what, findings, on_bytes)
    if matrix.format in GROUPED and matrix.columns % registry.GROUPED_COLUMN_MULTIPLE:
        _scan_padding(matrix, findings)
    if matrix.format == registry.FP8_ROW and "scales" in matrix.planes:
        _scan_zero_rows(matrix, findings)


def _scan_plane(
    matrix: StoredMatrix, name: str, is_wrong: IsWrong, what: str, findings: Findings, on_bytes: OnBytes
) -> None:
    """One error for all wrong values of a plane, which names the first; a warning if they can be decoded anyway."""
    plane = matrix.planes[name]
    item_bytes = np.dtype(plane.dtype).itemsize
    count, first, word = 0, -1, ""
    for begin in range(0, plane.size_bytes, CHUNK_BYTES):
        end = min(begin + CHUNK_BYTES, plane.size_bytes)
        chunk = Plane(plane.dtype, ((end - begin) // item_bytes,), plane.part(begin, end)).array()
        wrong = is_wrong(chunk)
        found = int(np.count_nonzero(wrong))
        if found and not count:
            at = int(np.argmax(wrong))
            first = begin // item_bytes + at
            word = f"0x{int(chunk[at : at + 1].view(f'<u{item_bytes}')[0]):0{2 * item_bytes}x}"
        count += found
        on_bytes(end - begin)
    if count:
        place = ", ".join(map(str, _place(matrix, name, first)))
        total = plane.size_bytes // item_bytes
        (span,) = plane.part(first * item_bytes, first * item_bytes + 1)
        report = findings.warn if is_wrong is _q8_unused else findings.error
        report(
            f"{span.path}: {_label(matrix)}: {name}: {count} of {total} are {what}; "
            f"the first is {word} at [{place}], byte {span.offset} of the file"
        )


def _label(matrix: StoredMatrix) -> str:
    return matrix.name if matrix.name.startswith("tensor ") else f"object {matrix.name}"


def _place(matrix: StoredMatrix, name: str, index: int) -> tuple[int, ...]:
    """Row and column (or block, group, byte) of an element of a plane."""
    plane = matrix.planes[name]
    if name == "scales" and matrix.is_swizzled:
        tiles = matrix.columns // NVFP4_TILE_COLUMNS
        tile_blocks = NVFP4_TILE_COLUMNS // NVFP4_BLOCK
        tile, rest = divmod(index, NVFP4_TILE_ROWS * tile_blocks)
        row = tile // tiles * NVFP4_TILE_ROWS + rest // 4 % 4 * 32 + rest // 16
        return row, tile % tiles * tile_blocks + rest % 4
    return tuple(int(each) for each in np.unravel_index(index, plane.shape))


def _row_blocks(matrix: StoredMatrix, names: tuple[str, ...]) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """(first row, the planes' rows) in blocks of bounded size."""
    planes = {name: matrix.planes[name] for name in names if name in matrix.planes}
    row_bytes = {name: plane.size_bytes // matrix.rows for name, plane in planes.items()}
    rows = max(1, CHUNK_BYTES // sum(row_bytes.values()))
    for begin in range(0, matrix.rows, rows):
        end = min(begin + rows, matrix.rows)
        yield (
            begin,
            {
                name: Plane(
                    plane.dtype,
                    (end - begin, *plane.shape[1:]),
                    plane.part(begin * row_bytes[name], end * row_bytes[name]),
                ).array()
                for name, plane in planes.items()
            },
        )


def _scan_padding(matrix: StoredMatrix, findings: Findings) -> None:
    """Columns beyond K, which a reader skips."""
    kind = GROUPED[matrix.format]
    groups = registry.GROUPED_COLUMN_MULTIPLE // kind.group  # the last ones of a row, 128 columns together
    used = matrix.columns % registry.GROUPED_COLUMN_MULTIPLE
    unused_groups = groups - -(-used // kind.group)
    for begin, planes in _row_blocks(matrix, ("codes", "high", "scales")):
        high = planes.get("high")
        tail = None if high is None else np.ascontiguousarray(high[:, -groups * kind.high_bytes :])
        codes = unpack(np.ascontiguousarray(planes["codes"][:, -groups * kind.codes_bytes :]), tail, kind)
        wrong = codes[:, used:].any(axis=1)
        if unused_groups:
            wrong |= planes["scales"][:, -unused_groups:].any(axis=1)
        if wrong.any():
            findings.warn(
                f"{matrix.path}: {_label(matrix)}: the padding after column {matrix.columns} is not zero, "
                f"first in row {begin + int(np.argmax(wrong))}"
            )
            return


def _scan_zero_rows(matrix: StoredMatrix, findings: Findings) -> None:
    """Rows of scale 0 must be zero by their codes too, or an encoder has lost them."""
    codes = matrix.planes["codes"]
    zero_rows = np.flatnonzero((matrix.planes["scales"].array() & 0x7FFF) == 0)
    for row in map(int, zero_rows[:MAX_ZERO_ROWS]):
        spans = codes.part(row * matrix.columns, (row + 1) * matrix.columns)
        if (Plane("u1", (matrix.columns,), spans).array() & _E4M3_MAGNITUDE).any():
            findings.warn(f"{matrix.path}: {_label(matrix)}: row {row} has scale 0 and codes that are not 0")
            return


def _not_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = ~np.isfinite(values)
    return wrong


def _bf16_not_finite(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (words & _BF16_EXPONENT) == _BF16_EXPONENT
    return wrong


def _bf16_negative_or_not_finite(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = words >= _BF16_EXPONENT  # the sign is the highest bit
    wrong &= words != 0x8000
    return wrong


def _e4m3_nan(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (words & _E4M3_MAGNITUDE) == _E4M3_MAGNITUDE
    return wrong


def _no_scale_word(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = words > _LARGEST_SCALE_WORD
    return wrong


def _q8_unused(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = words == 0x80
    return wrong


def _t2_illegal(words: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (words >> 1 & ~words & _T2_LOW_BITS) != 0
    return wrong
