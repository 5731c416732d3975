"""Products of many rows by block-scaled FP4 tensor cores, of NVFP4 weights with activations rounded to NVFP4.

Written for sm_100a and sm_120a and never run there: no such card was at hand. The kernels that make the operands are
tested instruction by instruction on the CPU, and ``check`` compares the whole product on the card before it serves.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.dense_block import composed_dense_block
from kernels_numba.matrices import Nvfp4Matrix
from kernels_numba.nvidia.launch import Device, device_of
from kernels_numba.nvidia.linear import STREAMED_ROWS, StreamSegment, decoded_product, product, stream_segment
from kernels_numba.nvidia.linear_formats import NVFP4, STEP_COLUMNS, TILE_ROWS
from kernels_numba.nvidia.linear_fp4_kernels import ARCHS, BLOCK, KERNELS
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS
from kernels_numba.nvidia.self_test import assert_close
from kernels_numba.ops import OpTable
from kernels_numba.report import GroupReport
from kernels_numba.shapes import DenseBlockWeights, PackedLinear
from kernels_numba.swizzle import TILE_ROWS as SCALE_ROWS
from kernels_numba.swizzle import unswizzle_scales

_log = logging.getLogger(__name__)

LARGEST = 6.0 * 448.0
"""Of an NVFP4 number without further factors."""
_WEIGHT_ROWS = 64 * SCALE_ROWS
"""Rows of weights of one product; whole tiles of scales."""
_ROUNDED = 0.11
"""Of gaussian values by NVFP4; 0.095 is usual."""
_TOLERANCE = 4e-3
"""Against the product of the same rounded operands; results are rounded to bfloat16."""


def with_fp4_prefill(table: OpTable, device: Device) -> OpTable:
    """``table`` with products of many rows by FP4 tensor cores, where they agree with the reference on the device.

    Where they do not, or there are none, the journal says so and ``table`` serves as it is.
    """
    reason = _obstacle(device) or _mismatch(device)
    report = GroupReport("linear_fp4", ("linear", "dense_block"), "torch" if reason else "cuda", fallback_reason=reason)
    reported = replace(table.report, groups=(*table.report.groups, report))
    if reason:
        _log.warning("engine.prefill_activations: bf16 instead of nvfp4, products of prompts are not FP4: %s", reason)
        return replace(table, report=reported)
    composed = composed_dense_block(linear, table.add_rms_norm, table.silu_mul)

    def dense_block(residual: Tensor, mixed: Tensor, weights: DenseBlockWeights) -> tuple[Tensor, Tensor]:
        serving = table.dense_block if residual.shape[0] <= STREAMED_ROWS else composed
        return serving(residual, mixed, weights)

    return replace(table, linear=linear, dense_block=dense_block, report=reported)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """As ``kernels_numba.ops.Linear``; many rows of ``x`` are rounded to NVFP4 before they meet NVFP4 weights."""
    return product(x, packed, _product_of_many_rows)


def _product_of_many_rows(x: Tensor, segment: StreamSegment, out: Tensor) -> None:
    multiply = fp4_product if can_multiply(segment) else decoded_product
    multiply(x, segment, out)


def _mismatch(device: Device) -> str:
    try:
        device.load(spec.name for spec in KERNELS)
        check(torch.device("cuda", device.index))
    except Exception as error:  # whatever a library or a kernel says: the ordinary products serve
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _obstacle(device: Device) -> str:
    """Why block-scaled FP4 products cannot be computed on a device, empty if they can."""
    if device.arch not in ARCHS:
        return f"{device.label} has no block-scaled FP4 tensor cores ({' and '.join(ARCHS)} have)"
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return f"torch {torch.__version__} has no torch.nn.functional.scaled_mm (2.10 has)"
    return ""


def can_multiply(segment: StreamSegment) -> bool:
    """Whether a segment is of NVFP4, with few enough factors to be those of a product each, which has whole tiles."""
    if segment.format_name != NVFP4.name or segment.stream.dim() != 1 or not segment.runs[0]:
        return False
    return all(first % TILE_ROWS == 0 for first, _, _ in segment.runs[0])


def fp4_product(x: Tensor, segment: StreamSegment, out: Tensor) -> None:
    """``out[:] = round(x) @ weights.T`` of bfloat16 ``x [N, K]``, rounded to NVFP4 in blocks of 16 columns.

    All rows share one power of two, which puts the largest value into the range of the format.
    """
    codes, scales, down = activations_operand(x)
    for first, last, factor in segment.runs[0]:
        for begin in range(first, last, _WEIGHT_ROWS):
            end = min(last, begin + _WEIGHT_ROWS)
            weights = weights_operand(segment, begin, end)
            out[:, begin:end] = _scaled_mm(codes, scales, down, *weights, factor)


def activations_operand(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, tiled scales, and the float32 ``[1]`` that their values are to be multiplied by."""
    rows, columns = x.shape
    largest = torch.linalg.vector_norm(x, math.inf).float()
    exponent = torch.floor(torch.log2(LARGEST / largest)).clamp(-100, 100).view(1)
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scales = torch.zeros(_scale_bytes(rows, columns), dtype=torch.uint8, device=x.device)
    lift = torch.exp2(exponent)
    device_of(x.device).kernel("fp4_activations")(
        (-(-columns // BLOCK // CONVERTING_THREADS), rows, 1),
        x.data_ptr(),
        codes.data_ptr(),
        scales.data_ptr(),
        lift.data_ptr(),
        rows,
        columns,
        2 * x.stride(0),
    )
    return codes, scales, torch.where(torch.isfinite(largest), torch.exp2(-exponent), torch.nan)


def weights_operand(segment: StreamSegment, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Codes and tiled scales of rows ``begin`` to ``end``, multiples of 16, without their factors."""
    codes = torch.empty(end - begin, segment.columns // 2, dtype=torch.uint8, device=segment.stream.device)
    scales = torch.zeros(_scale_bytes(end - begin, segment.columns), dtype=torch.uint8, device=codes.device)
    steps, count = segment.columns // segment.slices // STEP_COLUMNS, (end - begin) // TILE_ROWS
    device_of(codes.device).kernel("fp4_weights")(
        (-(-steps * count // DEQUANT_STEPS), segment.slices, 1),
        segment.stream.data_ptr(),
        codes.data_ptr(),
        scales.data_ptr(),
        steps,
        segment.rows // TILE_ROWS,
        begin // TILE_ROWS,
        count,
    )
    return codes, scales


def _scale_bytes(rows: int, columns: int) -> int:
    return -(-rows // SCALE_ROWS) * SCALE_ROWS * columns // BLOCK


def _scaled_mm(x: Tensor, x_scales: Tensor, down: Tensor, w: Tensor, w_scales: Tensor, factor: float) -> Tensor:
    functional = torch.nn.functional
    blocks, whole = functional.ScalingType.BlockWise1x16, functional.ScalingType.TensorWise
    tiled, plain = functional.SwizzleType.SWIZZLE_32_4_4, functional.SwizzleType.NO_SWIZZLE
    return functional.scaled_mm(
        x.view(torch.float4_e2m1fn_x2),
        w.view(torch.float4_e2m1fn_x2).t(),
        scale_a=[x_scales.view(torch.float8_e4m3fn), down],
        scale_recipe_a=[blocks, whole],
        swizzle_a=[tiled, plain],
        scale_b=[w_scales.view(torch.float8_e4m3fn), torch.full_like(down, factor)],
        scale_recipe_b=[blocks, whole],
        swizzle_b=[tiled, plain],
        output_dtype=torch.bfloat16,
    )


def check(device: torch.device) -> None:
    """A product in two runs of factors against float64 with the operands as rounded. KernelMismatchError."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = 272, 512
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator).to(torch.uint8)
    scales = torch.randint(0, 127, (rows, columns // BLOCK), generator=generator).to(torch.uint8)
    multiplier = torch.tensor([0.75, 1.5]).repeat_interleave(torch.tensor([112, 160]))
    matrix = Nvfp4Matrix(codes, scales, multiplier)
    moved = Nvfp4Matrix(codes.to(device), scales.to(device), multiplier.to(device))
    segment = stream_segment(moved, NVFP4, 2, device_of(device).multiprocessors)
    x = torch.randn(130, columns, generator=generator).bfloat16().to(device)
    out = torch.full((x.shape[0], rows), torch.nan, dtype=torch.bfloat16, device=device)
    fp4_product(x, segment, out)
    x_codes, x_scales, down = activations_operand(x)
    plain = unswizzle_scales(x_scales, x_scales.numel() * BLOCK // columns, columns)[: x.shape[0]]
    rounded = reference.dequantised(Nvfp4Matrix(x_codes.cpu(), plain.cpu(), down.cpu().expand(x.shape[0])))
    assert_close("fp4_activations", rounded, x.double(), _ROUNDED)
    assert_close("fp4_product", out, reference.linear(rounded.double(), reference.dequantised(matrix)), _TOLERANCE)
