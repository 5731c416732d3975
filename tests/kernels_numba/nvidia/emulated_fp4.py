"""What ``fp4_tiles`` gives kernels, done on the CPU: products as the PTX ISA describes them, words by their meaning.

The tables are those of "Matrix Fragments for mma.m16n8k64" (``.e2m1``) and of "Block Scaling for mma.sync"
(``.scale_vec::4X``, ``.ue4m3``) in the PTX ISA; that of two lanes the first has the scales of row g and the second
those of row g + 8 is in a figure there, and in the layouts of NVIDIA/cutlass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WARP = 32
_LARGEST = float.fromhex("0x1.FEp127")
FP4_PRODUCTS = {"mma_nvfp4_first": 0, "mma_nvfp4_second": 1}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_STORED = {"even": ((15, 11), (7, 3)), "odd": ((8, 14), (0, 6))}
"""Of the codes of 16 stored bits: the places of the sign and of the highest bit of the magnitude, by their group."""


def e2m1(code: int) -> float:
    return -E2M1[code & 7] if code & 8 else E2M1[code & 7]


def ue4m3(byte: int) -> float:
    assert byte < 0x80, "the highest bit has to be 0"
    if byte == 0x7F:
        return math.nan
    exponent, mantissa = byte >> 3, byte & 7
    return mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def _element(lane: int, i: int, of_a: bool) -> tuple[int, int]:
    """Row of A or column of B, and k, of element i of a lane's fragment."""
    group, thread = lane >> 2, lane % 4
    if not of_a:
        return group, thread * 8 + (i & 7) + (32 if i >= 8 else 0)
    return (group if i < 8 or 16 <= i < 24 else group + 8), thread * 8 + (i & 7) + (32 if i >= 16 else 0)


_ELEMENTS = {
    of_a: np.array([[_element(lane, i, of_a) for i in range(32 if of_a else 16)] for lane in range(WARP)])
    for of_a in (True, False)
}
_SUMS = np.array(
    [[((lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)) for i in range(4)] for lane in range(WARP)]
)
_VALUES = np.array([e2m1(code) for code in range(16)])


def _operand(words: Sequence[Sequence[int]], scales: Sequence[int], of_a: bool) -> Any:
    """``[16 rows or 8 columns, 64 k]``, scaled; ``scales`` word by row or column."""
    codes = np.array(words, np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    found = np.zeros((len(scales), 64))
    found[_ELEMENTS[of_a][..., 0], _ELEMENTS[of_a][..., 1]] = _VALUES[codes.reshape(WARP, -1)]
    factors = [[ue4m3(int(word) >> 8 * block & 255) for block in range(4)] for word in scales]
    return found * np.repeat(np.array(factors), 16, axis=1)


def block_scaled_mma(
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[float]],
    scale_a: Sequence[int],
    scale_b: Sequence[int],
    thread_id_a: int,
    thread_id_b: int,
) -> list[tuple[Any, ...]]:
    """D of one ``mma.sync.m16n8k64`` of ``kind::mxf4nvf4``: lane by lane 4 words of A, 2 of B, 4 floats of C."""
    rows = _operand(a, [scale_a[4 * (row % 8) + 2 * thread_id_a + row // 8] for row in range(16)], of_a=True)
    columns = _operand(b, [scale_b[4 * column + thread_id_b] for column in range(8)], of_a=False)
    d = rows @ columns.T
    d[_SUMS[..., 0], _SUMS[..., 1]] += np.array(c, np.float64)
    return [tuple(lane) for lane in d[_SUMS[..., 0], _SUMS[..., 1]].astype(np.float32)]


def multiply_nvfp4(arguments: list[tuple[Any, ...]], half: int) -> list[Any]:
    """``mma_nvfp4_*`` of a warp: lane by lane ``A, B, C, scales of A, scales of B``."""
    sums = [list(lane[2]) for lane in arguments]
    for step in range(2):
        for tile in range(len(sums[0])):
            found = block_scaled_mma(
                [lane[0][4 * step : 4 * step + 4] for lane in arguments],
                [lane[1][tile][2 * step : 2 * step + 2] for lane in arguments],
                [own[tile] for own in sums],
                [lane[3][step] for lane in arguments],
                [lane[4][tile] for lane in arguments],
                half,
                2 * half + step,
            )
            for own, result in zip(sums, found, strict=True):
                own[tile] = result
    return [tuple(own) for own in sums]


def _stored(word: int, group: str) -> list[int]:
    """The codes of one group in a word, by bytes."""
    halves = word & 0xFFFF, word >> 16
    return [(half >> sign & 1) << 3 | half >> top - 2 & 7 for half in halves for sign, top in reversed(_STORED[group])]


def _nvfp4_codes(*words: int) -> tuple[int, ...]:
    """Of each step: even groups of rows g and g + 8, odd groups of both; the codes of two words take turns."""

    def made(x: int, y: int, group: str) -> int:
        codes = [code for pair in zip(_stored(x, group), _stored(y, group), strict=True) for code in pair]
        return sum(code << 4 * i for i, code in enumerate(codes))

    return tuple(
        made(int(words[4 * step + 2 * row]), int(words[4 * step + 2 * row + 1]), group)
        for step in range(2)
        for group in _STORED
        for row in range(2)
    )


def _spread_scales(word: int) -> int:
    scales = [int(word) >> shift & 127 for shift in (0, 7, 16, 23)]
    return sum(scale << 8 * i for i, scale in enumerate(scales))


def _e2m1_code(x: float) -> int:
    """To nearest, ties to even, at most 6, which NaN is as well."""
    if math.isnan(x):
        return 7
    distances = [abs(min(abs(float(x)), 6.0) - value) for value in E2M1]
    nearest = min(range(8), key=lambda code: (distances[code], code % 2))
    return nearest | (8 if math.copysign(1.0, x) < 0 else 0)


def _query_values(words: Sequence[int], swapped: int) -> tuple[Any, ...]:
    halves = np.array(words, np.uint32).view(np.uint16).astype(np.uint32) << 16
    x = np.nan_to_num(halves.view(np.float32), nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    return (*(np.roll(x, 4) if swapped else x), np.abs(x).max())


def _query_codes(values: Sequence[Any], step: Any) -> int:
    """Dimensions 2, 6, 0, 4, 3, 7, 1, 5."""
    codes = [_e2m1_code(float(np.float32(value) / np.float32(step))) for value in values[:8]]
    return sum(codes[dimension] << 4 * i for i, dimension in enumerate((2, 6, 0, 4, 3, 7, 1, 5)))


FP4: dict[str, Callable[..., Any]] = {
    "nvfp4_codes": _nvfp4_codes,
    "spread_scales": _spread_scales,
    "query_values": _query_values,
    "query_codes": _query_codes,
}
