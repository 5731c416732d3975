"""The linear ops as a group of the table, and their self-test."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.linear import (
    Activations,
    StreamSegment,
    decoded_product,
    linear,
    pack_linear,
    stream_product,
    stream_segment,
)
from kernels_numba.nvidia.linear_formats import FURTHER_FORMATS, USUAL_FORMATS, StreamFormat
from kernels_numba.nvidia.linear_kernels import (
    FURTHER_KERNELS,
    GEMV_COLUMNS,
    LARGE_ARCHS,
    SMALL_ARCHS,
    USUAL_KERNELS,
    gemv_name,
)
from kernels_numba.nvidia.linear_packing import stream_format
from kernels_numba.nvidia.linear_plan import warps_of
from kernels_numba.nvidia.self_test import OpGroup, Variant, assert_close

ROWS, COLUMNS = 80, 512
TOLERANCE = 4e-3
"""Of results that are rounded to bfloat16, by 2^-9 at most."""


def check(device: torch.device, formats: Collection[StreamFormat] = USUAL_FORMATS) -> None:
    """The kernels of some formats on small matrices, in one and in two slices, against float64. KernelMismatchError."""
    generator = torch.Generator().manual_seed(0)
    warps = warps_of(device_of(device).arch)
    for matrix in _matrices(generator):
        weights = stream_format(matrix)
        assert weights is not None
        if weights not in formats:
            continue
        values = reference.dequantised(matrix)
        for slices in (1, 2):
            segment = stream_segment(_moved(matrix, device), weights, slices, device_of(device).multiprocessors)
            for rows in GEMV_COLUMNS:
                x = _activations(generator, rows)
                found = _product(_streamed, x, segment, device)
                _assert_rows_close(gemv_name(weights.name, rows, warps), found, x, values)
        x = _activations(generator, 33)
        found = _product(decoded_product, x, segment, device)
        _assert_rows_close(f"dequant_{weights.name}", found, x, values)


def _activations(generator: torch.Generator, rows: int) -> Tensor:
    """Rows of very different magnitudes."""
    sizes = torch.exp2(torch.randint(-30, 30, (rows, 1), generator=generator))
    return (torch.randn(rows, COLUMNS, generator=generator) * sizes).bfloat16()


def _assert_rows_close(kernel: str, found: Tensor, x: Tensor, values: Tensor) -> None:
    """Each row brought to the same size, so that all count."""
    size = x.double().norm(dim=1, keepdim=True)
    assert_close(kernel, found.double().cpu() / size, reference.linear(x.double(), values) / size, TOLERANCE)


def _streamed(x: Tensor, segment: StreamSegment, out: Tensor) -> None:
    stream_product(Activations(x), segment, out)


def _product(
    multiply: Callable[[Tensor, StreamSegment, Tensor], None], x: Tensor, segment: StreamSegment, device: torch.device
) -> Tensor:
    """Into poisoned memory."""
    out = torch.full((x.shape[0], segment.rows), torch.nan, dtype=torch.bfloat16, device=device)
    multiply(x.to(device), segment, out)
    return out


def _matrices(generator: torch.Generator) -> list[Matrix]:
    def words(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator).to(torch.uint8)

    multiplier = torch.rand(ROWS, generator=generator) + 0.5
    scales = torch.randn(ROWS, COLUMNS // 32, generator=generator).half()
    wide = scales[:, : COLUMNS // 64].contiguous()
    blocks = torch.randint(0, 3, (ROWS,), generator=generator).int()
    low, high = words(0, 256, ROWS, COLUMNS // 2), words(0, 256, ROWS, COLUMNS // 4)
    return [
        Nvfp4Matrix(words(0, 256, ROWS, COLUMNS // 2), words(0, 127, ROWS, COLUMNS // 16), multiplier),
        Fp8RowMatrix(words(0, 127, ROWS, COLUMNS) | words(0, 2, ROWS, COLUMNS) << 7, multiplier),
        GroupedMatrix(8, COLUMNS, words(0, 256, ROWS, COLUMNS), None, scales),
        DenseMatrix(torch.randn(ROWS, COLUMNS, generator=generator).bfloat16()),
        GroupedMatrix(4, COLUMNS, low, None, wide),
        GroupedMatrix(5, COLUMNS, low, high[:, : COLUMNS // 8].contiguous(), wide),
        GroupedMatrix(6, COLUMNS, low, high, wide),
        Fp8BlockMatrix(
            words(0, 127, ROWS, COLUMNS) | words(0, 2, ROWS, COLUMNS) << 7,
            torch.rand(3, COLUMNS // 128, generator=generator) + 0.5,
            blocks,
        ),
    ]


def _moved(matrix: Matrix, device: torch.device) -> Matrix:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return replace(matrix, **planes)


GROUP = OpGroup(
    name="linear",
    kernels=tuple(spec.name for spec in USUAL_KERNELS),
    ops={
        "pack_linear": partial(pack_linear, formats=USUAL_FORMATS),
        "linear": linear,
    },
    check=check,
    variants=(
        Variant(
            "linear_q5_q6_fp8_block",
            (*LARGE_ARCHS, *SMALL_ARCHS),
            tuple(spec.name for spec in FURTHER_KERNELS),
            {"pack_linear": pack_linear},
            partial(check, formats=FURTHER_FORMATS),
        ),
    ),
)
