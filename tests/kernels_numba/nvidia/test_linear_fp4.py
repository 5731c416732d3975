"""Operands of block-scaled FP4 products as the kernels make them, instruction by instruction on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.matrices import Nvfp4Matrix
from kernels_numba.nvidia import linear_fp4
from kernels_numba.nvidia.linear_formats import NVFP4
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS
from kernels_numba.nvidia.linear_packing import packed_stream
from kernels_numba.swizzle import unswizzle_scales
from tests.kernels_numba.nvidia.emulator import launch
from tests.kernels_numba.weights import E2M1, RandomMatrices


def weights_operand(matrix: Nvfp4Matrix, slices: int, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Codes and tiled scales of rows ``first`` to ``end``."""
    stream, _ = packed_stream(matrix, NVFP4, slices)
    rows, columns = end - first, matrix.columns
    codes = torch.full((rows, columns // 2), 0xAA, dtype=torch.uint8)
    scales = torch.full((-(-rows // 128) * 128 * columns // 16,), 0xAA, dtype=torch.uint8)
    steps, count = columns // slices // 128, rows // 16
    launch(
        linear_fp4.weights_source(),
        (-(-steps * count // DEQUANT_STEPS), slices, 1),
        32 * DEQUANT_STEPS,
        [stream.data_ptr(), codes.data_ptr(), scales.data_ptr(), steps, matrix.rows // 16, first // 16, count],
        [stream, codes, scales],
    )
    return codes, unswizzle_scales(scales, scales.numel() * 16 // columns, columns)[:rows]


def values(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 of codes ``[rows, columns / 2]`` and plain scales ``[rows, columns / 16]``."""
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    return E2M1[nibbles.long()] * scales.view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)


@pytest.mark.parametrize(
    ("rows", "columns", "slices", "first", "end"),
    [(16, 128, 1, 0, 16), (176, 256, 2, 32, 176)],
    ids=lambda size: str(size),
)
def test_weights(rows: int, columns: int, slices: int, first: int, end: int) -> None:
    matrix = RandomMatrices().nvfp4(rows, columns)
    matrix.scales[0, :4] = torch.tensor([0, 1, 7, 0x7E], dtype=torch.uint8)  # zero, subnormals, the largest
    found = values(*weights_operand(matrix, slices, first, end))
    assert torch.equal(found, values(matrix.codes, matrix.scales)[first:end])


def activations_operand(x: Tensor, lift: float) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    codes = torch.full((rows, columns // 2), 0xAA, dtype=torch.uint8)
    scales = torch.full((-(-rows // 128) * 128 * columns // 16,), 0xAA, dtype=torch.uint8)
    factor = torch.tensor([lift])
    launch(
        linear_fp4.activations_source(),
        (-(-columns // 16 // CONVERTING_THREADS), rows, 1),
        CONVERTING_THREADS,
        [t.data_ptr() for t in (x, codes, scales, factor)] + [rows, columns, 2 * x.stride(0)],
        [x, codes, scales, factor],
    )
    return codes, unswizzle_scales(scales, scales.numel() * 16 // columns, columns)[:rows]


@pytest.mark.parametrize(
    ("rows", "columns", "lift"),
    [(3, 128, 1.0), (2, 64, 2.0**-5), (1, 64, 2.0**9), (130, 64, 1.0)],
    ids=lambda size: str(size),
)
def test_activations(rows: int, columns: int, lift: float) -> None:
    """Codes and scales of the rule in float64: ties to the even code, zeros below the smallest scale."""
    generator = torch.Generator().manual_seed(rows)
    size = torch.exp2(torch.randint(-14, 6, (rows, columns // 16), generator=generator)).repeat_interleave(16, 1)
    x = (torch.randn(rows, columns, generator=generator) * size).bfloat16()
    x[0, :16] = torch.tensor([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -6, -5, -3.5, -2.5, -1.75, -1.25, -0.75, -0.25])
    x[0, 16:32] = 0
    codes, scales = activations_operand(x, lift)
    blocks = (x.double() * lift).view(rows, -1, 16)
    expected = (blocks.abs().amax(2).float() / 6).clamp(max=448).to(torch.float8_e4m3fn)
    assert torch.equal(scales, expected.view(torch.uint8))
    nearest = _nearest(blocks / expected.double()[..., None])
    nearest[expected.double() == 0] = 0
    nibbles = torch.stack([codes & 15, codes >> 4], -1).view(rows, -1, 16)
    assert torch.equal(E2M1[nibbles.long()], nearest)


def _nearest(y: Tensor) -> Tensor:
    """Of the E2M1 numbers the nearest, of two the one with the even code."""
    magnitudes = E2M1[:8]
    distance = (y.abs()[..., None] - magnitudes).abs()
    odd = torch.arange(8) % 2 * 1e-12
    return magnitudes[(distance + odd).argmin(-1)] * torch.sign(y)
