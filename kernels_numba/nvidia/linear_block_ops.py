"""The op ``dense_block``: one launch for few rows and NVFP4 weights, else one op after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.dense_block import composed_dense_block
from kernels_numba.matrices import DenseMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia.launch import Device, device_of
from kernels_numba.nvidia.linear import StreamSegment, linear, stream_segment
from kernels_numba.nvidia.linear_block_kernels import BLOCK_ARCHS, BLOCK_COLUMNS, KERNELS, block_name
from kernels_numba.nvidia.linear_block_layout import (
    COUNTER_STRIDE,
    COUNTERS_OF_GROUPS,
    SLICES,
    STATISTICS_ROWS,
    Cut,
    Sizes,
    cut_of,
)
from kernels_numba.nvidia.linear_formats import BF16, NVFP4, PLACE_BYTES, TILE_ROWS
from kernels_numba.nvidia.norms_ops import add_rms_norm, rms_norm, silu_mul
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import DenseBlockWeights, PackedLinear

PROGRAMMATIC = True
"""Whether a launch may fetch its first weights before its predecessor ends."""
ROUNDING = 8e-3
"""Of results that go through three roundings to bfloat16, by norm; 4e-3 is usual."""

_one_after_the_other = composed_dense_block(linear, add_rms_norm, silu_mul)


def dense_block(residual: Tensor, mixed: Tensor, weights: DenseBlockWeights) -> tuple[Tensor, Tensor]:
    parts = _parts_of(weights)
    rows = residual.shape[0]
    if parts is None or not 0 < rows <= BLOCK_COLUMNS[-1] or not _fits(residual, mixed, weights):
        return _one_after_the_other(residual, mixed, weights)
    device = device_of(residual.device)
    columns = next(columns for columns in BLOCK_COLUMNS if columns >= rows)
    cut = _cut(parts.sizes, columns, device)
    if cut is None:
        return _one_after_the_other(residual, mixed, weights)
    return _launch(device, columns, cut, device.multiprocessors, parts, residual, mixed, weights)


@dataclass(frozen=True)
class _Parts:
    """The streams of a block; ``following`` and ``side`` are others' where nothing follows, and not read."""

    out: StreamSegment
    gate_up: StreamSegment
    down: StreamSegment
    following: StreamSegment
    side: StreamSegment
    sizes: Sizes


def _parts_of(weights: DenseBlockWeights) -> _Parts | None:
    """None unless all are NVFP4, but for a few plain rows of what follows."""
    segments = [
        *weights.out_proj.segments,
        *weights.gate_up.segments,
        *weights.down.segments,
        *(weights.next_in_proj.segments if weights.next_in_proj else ()),
    ]
    streams = [each for each in segments if isinstance(each, StreamSegment) and each.slices == 1]
    formats = [each.format_name for each in streams]
    following = formats[3:]
    if len(streams) != len(segments) or formats[:3] != [NVFP4.name] * 3:
        return None
    if following not in ([], [NVFP4.name], [NVFP4.name, BF16.name]):
        return None
    out, gate_up, down = streams[:3]
    sizes = Sizes(
        mixed_width=out.columns,
        width=out.rows,
        inner=down.columns,
        in_rows=streams[3].rows if following else 0,
        side_rows=streams[4].rows if len(following) > 1 else 0,
    )
    return _Parts(out, gate_up, down, streams[3] if following else out, streams[-1], sizes)


def _fits(residual: Tensor, mixed: Tensor, weights: DenseBlockWeights) -> bool:
    return (
        residual.dtype == mixed.dtype == torch.bfloat16
        and residual.is_contiguous()
        and mixed.is_contiguous()
        and residual.data_ptr() % 16 == mixed.data_ptr() % 16 == 0
        and weights.norm.data_ptr() % 16 == weights.next_norm.data_ptr() % 16 == 0
    )


def _cut(sizes: Sizes, columns: int, device: Device) -> Cut | None:
    if device.arch not in BLOCK_ARCHS:
        return None
    return _cut_of(sizes, columns, device.multiprocessors, device.shared_bytes_per_block)


_cut_of = lru_cache(maxsize=1024)(cut_of)


@dataclass(frozen=True)
class _Workspace:
    """What blocks of a launch leave to each other. One per device: launches follow one another on one stream."""

    partials: Tensor
    activated: Tensor
    middle: Tensor
    statistics: Tensor
    counters: Tensor  # see ``linear_block.source``


@lru_cache
def _workspace(device: torch.device, blocks: int, width: int, inner: int) -> _Workspace:
    def bfloat16(columns: int) -> Tensor:
        return torch.empty(STATISTICS_ROWS, columns, dtype=torch.bfloat16, device=device)

    return _Workspace(
        torch.empty(max(SLICES) * width // TILE_ROWS * PLACE_BYTES, dtype=torch.uint8, device=device),
        bfloat16(inner),
        bfloat16(width),
        torch.empty(2, blocks, STATISTICS_ROWS, device=device),
        torch.zeros(COUNTERS_OF_GROUPS + blocks, COUNTER_STRIDE, dtype=torch.int32, device=device),
    )


def _launch(
    device: Device,
    columns: int,
    cut: Cut,
    blocks: int,
    parts: _Parts,
    residual: Tensor,
    mixed: Tensor,
    weights: DenseBlockWeights,
) -> tuple[Tensor, Tensor]:
    sizes, follows = parts.sizes, weights.next_in_proj is not None
    space = _workspace(residual.device, blocks, sizes.width, sizes.inner)
    total = torch.empty_like(residual)
    out = residual.new_empty(residual.shape[0], sizes.in_rows + sizes.side_rows) if follows else total
    streams = (parts.out, parts.gate_up, parts.down, parts.following, parts.side)
    device.kernel(block_name(columns))(
        (blocks, 1, 1),
        *(tensor.data_ptr() for each in streams for tensor in (each.stream, each.factors)),
        *(tensor.data_ptr() for tensor in (mixed, residual, weights.norm, weights.next_norm, total, out)),
        *(getattr(space, name).data_ptr() for name in _Workspace.__dataclass_fields__),
        *(residual.shape[0], sizes.mixed_width, sizes.width, sizes.inner, sizes.in_rows, sizes.side_rows),
        *(out.shape[1], cut.out_slices, cut.down_slices, cut.in_tiles_beside, cut.slots, 4 if follows else 3),
        weights.eps,
        shared_bytes=cut.shared_bytes,
        programmatic=PROGRAMMATIC,
    )
    return total, out if follows else _normed(total, weights)


def _normed(x: Tensor, weights: DenseBlockWeights) -> Tensor:
    return rms_norm(x, weights.next_norm, weights.eps)


TEST_BLOCKS = 8
TEST_SIZES = Sizes(mixed_width=512, width=512, inner=512, in_rows=512, side_rows=32)


def _check(device: torch.device) -> None:
    """All kernels on a few blocks, against the reference in float64."""
    found = device_of(device)
    if found.arch not in BLOCK_ARCHS:
        return
    generator = torch.Generator().manual_seed(0)
    sizes = TEST_SIZES

    def nvfp4(rows: int, columns: int) -> Matrix:
        codes, scales = (
            torch.randint(0, most, (rows, columns // each), generator=generator).to(torch.uint8)
            for most, each in ((256, 2), (127, 16))
        )
        return Nvfp4Matrix(codes, scales, torch.full((rows,), 2e-4))

    matrices = [
        nvfp4(sizes.width, sizes.mixed_width),
        nvfp4(2 * sizes.inner, sizes.width),
        nvfp4(sizes.width, sizes.inner),
        nvfp4(sizes.in_rows, sizes.width),
        DenseMatrix(torch.randn(sizes.side_rows, sizes.width, generator=generator).bfloat16()),
    ]
    out, gate_up, down, following, side = (_stream(matrix, device, found.multiprocessors) for matrix in matrices)
    norm, next_norm = torch.rand(2, sizes.width, generator=generator) + 0.5
    weights = DenseBlockWeights(
        PackedLinear((out,)),
        norm.to(device),
        PackedLinear((gate_up,)),
        PackedLinear((down,)),
        next_norm.to(device),
        PackedLinear((following, side)),
        1e-6,
    )
    parts = _parts_of(weights)
    assert parts is not None
    values = [reference.dequantised(matrix) for matrix in matrices]
    for columns in BLOCK_COLUMNS:
        cut = cut_of(sizes, columns, TEST_BLOCKS, found.shared_bytes_per_block)
        assert cut is not None
        residual, mixed = torch.randn(2, columns, sizes.width, generator=generator).bfloat16()
        there = residual.to(device), mixed.to(device)
        total, projected = _launch(found, columns, cut, TEST_BLOCKS, parts, *there, weights)
        expected = _expected(residual, mixed, values, norm, next_norm)
        assert_close(block_name(columns), total, expected[0], ROUNDING)
        assert_close(block_name(columns), projected, expected[1], ROUNDING)


def _stream(matrix: Matrix, device: torch.device, blocks: int) -> StreamSegment:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return stream_segment(replace(matrix, **planes), BF16 if isinstance(matrix, DenseMatrix) else NVFP4, 1, blocks)


def _expected(
    residual: Tensor, mixed: Tensor, values: list[Tensor], norm: Tensor, next_norm: Tensor
) -> tuple[Tensor, Tensor]:
    out, gate_up, down, following, side = values
    h, normed = reference.add_rms_norm(residual.double(), reference.linear(mixed.double(), out), norm, 1e-6)
    hidden = reference.silu_mul(reference.linear(normed, gate_up))
    total, normed = reference.add_rms_norm(h, reference.linear(hidden, down), next_norm, 1e-6)
    return total, reference.linear(normed, torch.cat([following, side]))


GROUP = OpGroup("dense block", tuple(spec.name for spec in KERNELS), {"dense_block": dense_block}, _check)
