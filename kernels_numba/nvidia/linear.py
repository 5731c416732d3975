"""Products of bfloat16 activations with quantised weights in their own bits.

Few rows stream the weights through the tensor cores as they are; many rows decode them, some rows of weights at a
time, and multiply by cuBLAS. Matrices that no kernel takes stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from kernels_numba.matrices import DenseMatrix, Matrix, joined
from kernels_numba.nvidia.launch import Device, device_of
from kernels_numba.nvidia.linear_formats import FORMATS, STEP_COLUMNS, TILE_ROWS, StreamFormat
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS, FUSED_COLUMNS, gemv_name
from kernels_numba.nvidia.linear_packing import packed_stream, stream_format
from kernels_numba.nvidia.linear_plan import Limits, pass_of, shared_bytes, slices_of, warps_of
from kernels_numba.shapes import PackedLinear, PackedSegment
from kernels_numba.torch_ops import linear as torch_linear

STREAMED_ROWS = 96
"""Up to so many rows of activations, passes of the streaming kernel beat decoding the weights."""
DECODED_BYTES = 256 << 20
"""Bound of what one product decodes at a time."""
MOST_RUNS = 8
"""Runs of rows with one factor that are multiplied one by one; with more of them the factors follow the product."""
FEW_PLAIN_ROWS = 512
"""Up to so many rows of plain weights beside others are streamed like them."""
CONVERTING_BLOCKS = 8
"""Blocks that convert a row of activations."""
OVERLAPPED = True
"""Whether kernels begin to fetch weights while their predecessor in the stream still runs (from sm_90)."""


@dataclass(frozen=True)
class StreamSegment:
    """Rows of one format as ``linear_gemv`` reads them, or a stack of such."""

    stream: Tensor  # uint8 [..., bytes]
    factors: Tensor  # float32 [..., N]: of the sums of a row
    counters: Tensor  # int32 [..., blocks], always 0 between products
    runs: tuple[Any, ...]  # of each matrix of the stack, row-major: ((first row, end, factor), ...), or () for many
    format_name: str
    columns: int
    slices: int  # that lie one behind the other; tiles do in one slice, which a product may cut as it likes

    @property
    def rows(self) -> int:
        return self.factors.shape[-1]

    @property
    def size_bytes(self) -> int:
        return self.stream.nbytes + self.factors.nbytes + self.counters.nbytes

    def __getitem__(self, index: int) -> StreamSegment:
        each = len(self.runs) // self.stream.shape[0]
        return replace(
            self,
            stream=self.stream[index],
            factors=self.factors[index],
            counters=self.counters[index],
            runs=self.runs[index * each : (index + 1) * each],
        )


def pack_linear(*matrices: Matrix, formats: Collection[StreamFormat] = tuple(FORMATS.values())) -> PackedLinear:
    """Streams of ``formats``, on devices with room for their rings; other matrices as they are.

    Plain weights stay as they are too, for cuBLAS, unless they are a few rows beside others.
    """
    parts = joined(matrices)
    return PackedLinear(tuple(_packed(matrix, formats, alone=len(parts) == 1) for matrix in parts))


def _packed(matrix: Matrix, formats: Collection[StreamFormat], alone: bool) -> PackedSegment:
    weights = stream_format(matrix)
    plain = isinstance(matrix, DenseMatrix) and not matrix.stack  # experts stream, see moe_products
    if weights is None or weights not in formats or (plain and (alone or matrix.rows > FEW_PLAIN_ROWS)):
        return matrix
    limits = limits_of(device_of(matrix.device))
    if slices_of(weights, matrix.rows, matrix.columns, limits) is None:
        return matrix
    return stream_segment(matrix, weights, 1, limits.multiprocessors)


def limits_of(device: Device) -> Limits:
    """What decides how products are cut."""
    return Limits(device.multiprocessors, device.shared_bytes_per_block, warps_of(device.arch))


def stream_segment(matrix: Matrix, weights: StreamFormat, slices: int, most_blocks: int) -> StreamSegment:
    """The segment in so many slices of columns, which must divide their steps."""
    packed = [packed_stream(each, weights, slices) for each in _matrices(matrix)]
    factors = [factors for _, factors in packed]
    return StreamSegment(
        stream=_stacked([stream for stream, _ in packed], matrix.stack),
        factors=_stacked(factors, matrix.stack),
        counters=torch.zeros(*matrix.stack, most_blocks, dtype=torch.int32, device=matrix.device),
        runs=tuple(_runs(each / weights.lift) for each in factors),
        format_name=weights.name,
        columns=matrix.columns,
        slices=slices,
    )


def _matrices(matrix: Matrix) -> Iterator[Matrix]:
    """Those of a stack, row-major."""
    if not matrix.stack:
        yield matrix
        return
    for index in range(matrix.stack[0]):
        yield from _matrices(matrix[index])


def _stacked(tensors: list[Tensor], stack: tuple[int, ...]) -> Tensor:
    """Without a copy if there is only one."""
    return torch.stack(tensors).view(*stack, -1) if stack else tensors[0]


def _runs(factors: Tensor) -> tuple[tuple[int, int, float], ...]:
    values, counts = torch.unique_consecutive(factors, return_counts=True)
    if len(values) > MOST_RUNS:
        return ()
    ends = counts.cumsum(0).tolist()
    return tuple(zip([0, *ends[:-1]], ends, values.tolist(), strict=True))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """As ``kernels_numba.ops.Linear``, of bfloat16."""
    return product(x, packed, decoded_product)


def product(x: Tensor, packed: PackedLinear, of_many_rows: Callable[[Tensor, StreamSegment, Tensor], None]) -> Tensor:
    """As ``linear``; ``of_many_rows`` does what ``decoded_product`` does."""
    if not any(isinstance(segment, StreamSegment) for segment in packed.segments):
        return torch_linear.linear(x, packed)
    if x.dtype != torch.bfloat16:
        raise TypeError(f"kernels multiply bfloat16 activations, not {x.dtype}")
    out = x.new_empty(x.shape[0], packed.outputs)
    activations = Activations(x.contiguous())
    begin = 0
    for segment in packed.segments:
        place = out[:, begin : begin + segment.rows]
        if not isinstance(segment, StreamSegment):
            torch_linear.multiply(activations.x, cast(Matrix, segment), place)
        elif x.shape[0] <= STREAMED_ROWS:
            stream_product(activations, segment, place)
        else:
            of_many_rows(activations.x, segment, place)
        begin += segment.rows
    return out


class Activations:
    """Rows of bfloat16, and what they were converted to for the products before."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._converted: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def converted(self, device: Device, begin: int, end: int, columns: int) -> tuple[Tensor, Tensor]:
        """Rows ``begin`` to ``end``, see ``converted``."""
        if (begin, columns) not in self._converted:
            self._converted[begin, columns] = converted(device, self.x[begin:end], columns)
        return self._converted[begin, columns]


def stream_product(activations: Activations, segment: StreamSegment, out: Tensor) -> None:
    """``out[:] = x @ weights.T`` of a few rows; ``out [rows, N]`` has contiguous columns."""
    x = activations.x
    device, weights = device_of(x.device), FORMATS[segment.format_name]
    cut = partial(pass_of, weights, segment.rows, segment.columns, limits_of(device), packed_slices=segment.slices)
    most, _ = cut(x.shape[0])
    for begin in range(0, x.shape[0], most):
        end = min(x.shape[0], begin + most)
        columns, slices = cut(end - begin)
        if columns in FUSED_COLUMNS:
            rows = scales = x[begin:end]
        else:
            rows, scales = activations.converted(device, begin, end, columns)
        _stream_pass(device, columns, slices, rows, scales, segment, out[begin:end])


def _stream_pass(
    device: Device, columns: int, slices: int, rows: Tensor, scales: Tensor, segment: StreamSegment, out: Tensor
) -> None:
    weights = FORMATS[segment.format_name]
    tiles, steps = segment.rows // TILE_ROWS, segment.columns // slices // STEP_COLUMNS
    partials = segment.factors  # not touched
    if slices > 1:
        partials = torch.empty(slices * columns * segment.rows, device=out.device)
    warps = warps_of(device.arch)
    device.kernel(gemv_name(weights.name, columns, warps))(
        (min(device.multiprocessors // slices, tiles), slices, 1),
        segment.stream.data_ptr(),
        rows.data_ptr(),
        scales.data_ptr(),
        out.data_ptr(),
        segment.factors.data_ptr(),
        partials.data_ptr(),
        segment.counters.data_ptr(),
        out.shape[0],
        out.stride(0),
        steps,
        tiles,
        tiles * steps if segment.slices > 1 else steps,
        steps if segment.slices > 1 else slices * steps,
        shared_bytes=shared_bytes(weights, columns, segment.columns // slices, warps),
        programmatic=OVERLAPPED,
    )


def converted(device: Device, x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Halves in fragment order of up to ``columns`` rows, and what products with each row are multiplied by."""
    activations = torch.empty(columns * x.shape[1], dtype=torch.float16, device=x.device)
    scales = torch.empty(columns, device=x.device)
    device.kernel(f"activations_m{columns}")(
        (CONVERTING_BLOCKS, columns, 1),
        x.data_ptr(),
        activations.data_ptr(),
        scales.data_ptr(),
        x.shape[0],
        x.shape[1],
        shared_bytes=CONVERTING_THREADS // 8,
        programmatic=OVERLAPPED,
    )
    return activations, scales


def decoded_product(x: Tensor, segment: StreamSegment, out: Tensor) -> None:
    """As ``stream_product``, of many rows."""
    weights = FORMATS[segment.format_name]
    block_rows = max(1, DECODED_BYTES // (2 * segment.columns * TILE_ROWS)) * TILE_ROWS
    for begin in range(0, segment.rows, block_rows):
        end = min(segment.rows, begin + block_rows)
        values = decoded(segment, begin, end)
        if weights.row_factor_in_values:
            torch.mm(x, values.T, out=out[:, begin:end])
        elif segment.runs[0]:
            _multiply_runs(x, values, begin, segment.runs[0], out)
        else:
            factors = segment.factors[begin:end] / weights.lift
            torch.mul(torch.mm(x, values.T, out_dtype=torch.float32), factors, out=out[:, begin:end])


def _multiply_runs(
    x: Tensor, values: Tensor, first: int, runs: tuple[tuple[int, int, float], ...], out: Tensor
) -> None:
    """One product for each run of rows with the same factor, which costs nothing as that of the product."""
    for begin, end, factor in runs:
        begin, end = max(begin, first), min(end, first + values.shape[0])
        if begin < end:
            place = out[:, begin:end]
            torch.addmm(place, x, values[begin - first : end - first].T, beta=0, alpha=factor, out=place)


def decoded(segment: StreamSegment, begin: int, end: int) -> Tensor:
    """Rows ``begin`` to ``end``, multiples of 16, as bfloat16, without the factors that follow the product."""
    device, weights = device_of(segment.stream.device), FORMATS[segment.format_name]
    values = torch.empty(end - begin, segment.columns, dtype=torch.bfloat16, device=segment.stream.device)
    steps, count = segment.columns // segment.slices // STEP_COLUMNS, (end - begin) // TILE_ROWS
    device.kernel(f"dequant_{weights.name}")(
        (-(-steps * count // DEQUANT_STEPS), segment.slices, 1),
        segment.stream.data_ptr(),
        segment.factors.data_ptr(),
        values.data_ptr(),
        steps,
        segment.rows // TILE_ROWS,
        begin // TILE_ROWS,
        count,
    )
    return values
