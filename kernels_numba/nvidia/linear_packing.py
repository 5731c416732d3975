"""Matrices as streams of steps (``linear_formats``), made on the device that they lie on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia.linear_formats import (
    BF16,
    FP8,
    FP8_BLOCK,
    NVFP4,
    Q4,
    Q5,
    Q6,
    Q8,
    STEP_COLUMNS,
    TILE_ROWS,
    StreamFormat,
)

BLOCK_WEIGHTS = 1 << 24
"""Weights that are packed at a time: it takes some 16 bytes each."""
LARGEST_SCALE_EXPONENT = 8
"""Scales of the group formats are put below 2^8 by row: 128 times that is a half, and small ones stay normal."""
BLOCK_SCALE_EXPONENT = 9
"""Those of FP8 in blocks below 2^9, in float32: times 2^8, a row's factor is at most 2^127."""


def stream_format(matrix: Matrix) -> StreamFormat | None:
    """The format a matrix can be packed in, None if kernels cannot multiply it."""
    if matrix.rows % TILE_ROWS or matrix.columns % STEP_COLUMNS or not matrix.rows:
        return None
    match matrix:
        case Nvfp4Matrix():
            return NVFP4
        case Fp8RowMatrix():
            return FP8
        case Fp8BlockMatrix():
            return FP8_BLOCK
        case GroupedMatrix():
            return {4: Q4, 5: Q5, 6: Q6, 8: Q8}.get(matrix.bits)
        case DenseMatrix() if matrix.values.dtype == torch.bfloat16:
            return BF16
        case _:
            return None


def packed_stream(matrix: Matrix, weights: StreamFormat, slices: int) -> tuple[Tensor, Tensor]:
    """``uint8 [bytes]`` in the order slice, tile, step; and float32 ``[N]``, what a row of sums is multiplied by.

    ``matrix`` is one matrix, no stack.
    """
    tiles, steps = matrix.rows // TILE_ROWS, matrix.columns // STEP_COLUMNS
    stream = torch.empty(slices, tiles, steps // slices, weights.step_bytes, dtype=torch.uint8, device=matrix.device)
    factors = torch.empty(matrix.rows, device=matrix.device)
    block_tiles = max(1, BLOCK_WEIGHTS // (TILE_ROWS * matrix.columns))
    for begin in range(0, tiles, block_tiles):
        end = min(tiles, begin + block_tiles)
        rows = slice(begin * TILE_ROWS, end * TILE_ROWS)
        parts = _PACKERS[weights.name](matrix.select_rows(rows), end - begin, steps)
        packed = torch.cat([parts.codes, parts.scales], -1)
        stream[:, begin:end] = packed.view(end - begin, slices, steps // slices, -1).transpose(0, 1)
        factors[rows] = parts.factors
    return stream.view(-1), factors


@dataclass(frozen=True)
class _Steps:
    """Some tiles of a matrix."""

    codes: Tensor  # uint8 [tiles, steps, bytes], the high bits of q5 and q6 behind the low ones
    scales: Tensor  # uint8 [tiles, steps, bytes]
    factors: Tensor  # float32 [rows]


def _pack_nvfp4(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    assert isinstance(matrix, Nvfp4Matrix)
    signs = (matrix.scales >> 7) << 3  # of scales, which the stream does not keep
    codes = _nibbles(matrix.codes).view(*matrix.scales.shape, 16) ^ signs[..., None]
    c = _fragments(codes, tiles, steps).int()  # [tile, step, piece, g, q, word, row half, 4]

    def half(code: Tensor, sign: int, magnitude: int) -> Tensor:
        return ((code >> 3) << sign) | ((code & 7) << magnitude)

    def halves(column: int) -> Tensor:
        """The codes of a column of each pair, as one half of a word, see ``ptx.dq8``."""
        low, high = c[..., 0, :], c[..., 1, :]
        first, second = half(low[..., column], 15, 9), half(high[..., column], 7, 1)
        return first | second | half(low[..., column + 2], 8, 12) | half(high[..., column + 2], 0, 4)

    words = torch.stack([halves(0), halves(1)], -1)
    s = _fragment_scales(matrix.scales & 127, tiles, steps, 8).int()  # [tile, step, g, group, row half]
    units = s[..., 0::2, :] | (s[..., 1::2, :] << 7)
    return _Steps(_bytes(words.short(), tiles, steps), _bytes(units.short(), tiles, steps), matrix.multiplier * 128)


def _pack_fp8(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    assert isinstance(matrix, Fp8RowMatrix)
    codes = _bytes(_fragments(matrix.codes, tiles, steps, words=2), tiles, steps)
    return _Steps(codes, codes[..., :0], matrix.multiplier * FP8.lift)


def _pack_fp8_block(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    assert isinstance(matrix, Fp8BlockMatrix)
    codes = _bytes(_fragments(matrix.codes, tiles, steps, words=2), tiles, steps)
    scales = matrix.scales[matrix.block_of_row.long()]
    up, down = _powers_of_two(scales, BLOCK_SCALE_EXPONENT, smallest=2.0**-100)
    placed = _fragment_scales(scales * up[:, None], tiles, steps, 1)
    return _Steps(codes, _bytes(placed, tiles, steps), down * FP8.lift)


def _pack_q8(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    assert isinstance(matrix, GroupedMatrix)
    scales, factors = _normalised(matrix.scales)
    codes = _bytes(_fragments(matrix.codes ^ 128, tiles, steps, words=2), tiles, steps)
    return _Steps(codes, _bytes(_fragment_scales(scales, tiles, steps, 4), tiles, steps), factors)


def _pack_low_bits(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    """q4, q5 and q6."""
    assert isinstance(matrix, GroupedMatrix)
    scales, factors = _normalised(matrix.scales)
    low, high_bits = _nibbles(matrix.codes), matrix.bits - 4
    c = _fragments(low if matrix.high is not None else low ^ 8, tiles, steps).int()

    def halves(column: int) -> Tensor:
        low, high = c[..., 0, :], c[..., 1, :]
        return low[..., column] | (high[..., column] << 4) | (low[..., column + 2] << 8) | (high[..., column + 2] << 12)

    codes = _bytes(torch.stack([halves(0), halves(1)], -1).short(), tiles, steps)
    if matrix.high is not None:
        codes = torch.cat([codes, _high_bits(matrix.high, high_bits, tiles, steps)], -1)
    return _Steps(codes, _bytes(_fragment_scales(scales, tiles, steps, 2), tiles, steps), factors)


def _high_bits(plane: Tensor, bits: int, tiles: int, steps: int) -> Tensor:
    """High bits of codes + 2^(bits + 3), ``uint8 [tiles, steps, bytes]``, see ``linear_formats``."""
    top = 1 << (bits - 1)
    fields = torch.stack([(plane >> shift) & (2 * top - 1) for shift in range(0, 8, bits)], -1).flatten(1) ^ top
    # [tile, step, g, q, group, pair of columns, row half, column]
    places = fields.reshape(tiles, 2, 8, steps, 8, 4, 2, 2).permute(0, 3, 2, 5, 4, 6, 1, 7)
    halves = places.reshape(tiles, steps, 8, 4, -1, 16 // bits, 2).int()
    shifts = torch.arange(0, 16, bits, dtype=torch.int32, device=plane.device)[:, None]
    return _bytes((halves << shifts).sum(-2).short(), tiles, steps)


def _pack_bf16(matrix: Matrix, tiles: int, steps: int) -> _Steps:
    """Halves of rows whose largest value is in [2^14, 2^15), so what is not exact is 2^-29 of it."""
    assert isinstance(matrix, DenseMatrix)
    largest = matrix.values.float().abs().amax(1).clamp(min=2.0**-100)
    shift = 15 - torch.frexp(largest).exponent.float()
    halves = (matrix.values.float() * torch.exp2(shift)[:, None]).half()
    places = halves.reshape(tiles, 2, 8, steps, 8, 4, 2, 2).permute(0, 3, 4, 2, 5, 6, 1, 7)
    codes = _bytes(places, tiles, steps)
    return _Steps(codes, codes[..., :0], torch.exp2(-shift))


_PACKERS: dict[str, Callable[[Matrix, int, int], _Steps]] = {
    "nvfp4": _pack_nvfp4,
    "fp8": _pack_fp8,
    "q8": _pack_q8,
    "fp8_block": _pack_fp8_block,
    "q4": _pack_low_bits,
    "q5": _pack_low_bits,
    "q6": _pack_low_bits,
    "bf16": _pack_bf16,
}


def _nibbles(codes: Tensor) -> Tensor:
    """``[rows, K]`` of ``[rows, K/2]``, the low nibble first."""
    return torch.stack([codes & 15, codes >> 4], -1).flatten(1)


def _fragments(codes: Tensor, tiles: int, steps: int, words: int = 4) -> Tensor:
    """Codes by place: ``[tile, step, piece, g, q, group of the piece, row half, column of the lane]``."""
    pieces = 8 // words
    return codes.reshape(tiles, 2, 8, steps, pieces, words, 4, 4).permute(0, 3, 4, 2, 6, 5, 1, 7)


def _fragment_scales(scales: Tensor, tiles: int, steps: int, per_step: int) -> Tensor:
    """Scales by place: ``[tile, step, g, group, row half]``."""
    return scales.reshape(tiles, 2, 8, steps, per_step).permute(0, 3, 2, 4, 1)


def _bytes(values: Tensor, tiles: int, steps: int) -> Tensor:
    return values.contiguous().view(torch.uint8).reshape(tiles, steps, -1)


def _normalised(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of the group formats times a power of two for each row, and its inverse."""
    up, down = _powers_of_two(scales.float(), LARGEST_SCALE_EXPONENT, smallest=2.0**-24)
    return (scales.float() * up[:, None]).half(), down


def _powers_of_two(scales: Tensor, exponent: int, smallest: float) -> tuple[Tensor, Tensor]:
    """Which put each row's largest scale into ``[2^(exponent - 1), 2^exponent)``, and their inverses."""
    largest = scales.abs().amax(1).clamp(min=smallest)
    shift = exponent - torch.frexp(largest).exponent.float()
    return torch.exp2(shift), torch.exp2(-shift)
