"""Products with weights of every kind on a CUDA device against their float64 values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba.matrices import Matrix
from kernels_numba.swizzle import unswizzle_scales
from kernels_numba.torch_ops import linear as torch_linear
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.weights import KINDS, RandomMatrices, values

pytestmark = pytest.mark.gpu

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-6.9}
"""Of sums in float32; of weights and of results in bfloat16, each by 2**-8."""


def moved(matrix: Matrix, device: torch.device) -> Matrix:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return replace(matrix, **planes)


def assert_close(out: Tensor, x: Tensor, *matrices: Matrix) -> None:
    """Measured against the sum of the magnitudes of all terms."""
    weights = torch.cat([values(matrix) for matrix in matrices])
    x = x.cpu().double()
    error = (out.cpu().double() - x @ weights.T).abs()
    assert (error <= ROUNDING[out.dtype] * (x.abs() @ weights.abs().T)).all()


@DTYPES
@pytest.mark.parametrize("rows", [0, 1, 5, 130])
@EVERY_KIND
def test_linear(device: torch.device, kind: str, rows: int, dtype: torch.dtype) -> None:
    columns = 320 if kind == "nvfp4" else 333
    matrix = RandomMatrices().by_name(kind)(257, columns)
    x = Random(rows).normal(rows, columns).to(device, dtype)
    out = TORCH_OPS.linear(x, TORCH_OPS.pack_linear(moved(matrix, device)))
    assert (out.dtype, out.shape) == (dtype, (rows, 257))
    assert_close(out, x, matrix)


@pytest.mark.parametrize("kind", ["nvfp4", "fp8_row"])
def test_a_multiplier_is_not_rounded_to_bfloat16(device: torch.device, kind: str) -> None:
    matrix = RandomMatrices().by_name(kind)(130, 320)
    x = Random(0).normal(5, 320).bfloat16()
    out = TORCH_OPS.linear(x.to(device), TORCH_OPS.pack_linear(moved(matrix, device))).cpu().double()
    exact, magnitudes = x.double() @ values(matrix).T, x.double().abs() @ values(matrix).abs().T
    assert ((out - exact).abs() <= 2**-7.99 * exact.abs() + 2e-6 * magnitudes).all()


@DTYPES
def test_mixed_formats(device: torch.device, dtype: torch.dtype) -> None:
    kinds = ["nvfp4", "nvfp4", "bfloat16", "q4", "q5", "q4", "fp8_block", "fp8_block", "fp8_row", "float32"]
    matrices = [RandomMatrices(seed).by_name(kind)(50 + seed, 192) for seed, kind in enumerate(kinds)]
    x = Random(0).normal(9, 192).to(device, dtype)
    packed = TORCH_OPS.pack_linear(*(moved(matrix, device) for matrix in matrices))
    assert_close(TORCH_OPS.linear(x, packed), x, *matrices)


@EVERY_KIND
def test_stacks(device: torch.device, kind: str) -> None:
    stack = RandomMatrices().by_name(kind)(3, 70, 192)
    x = Random(0).normal(4, 192).to(device, torch.bfloat16)
    packed = TORCH_OPS.pack_linear(moved(stack, device))
    for expert in range(3):
        assert_close(TORCH_OPS.linear(x, packed[expert]), x, stack[expert])


@DTYPES
@EVERY_KIND
def test_embedding(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    matrix = RandomMatrices().by_name(kind)(70, 192)
    token_ids = torch.tensor([69, 3, 3, 0])
    rows = TORCH_OPS.embedding(token_ids.to(device), moved(matrix, device), dtype)
    assert torch.equal(rows.cpu(), values(matrix)[token_ids].float().to(dtype))


@DTYPES
@EVERY_KIND
def test_memory_stays_within_the_scratch(
    device: torch.device, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch_bytes = 4 << 20
    monkeypatch.setattr(torch_linear, "SCRATCH_BYTES", scratch_bytes)
    matrix = moved(RandomMatrices().by_name(kind)(8192, 1024), device)
    x = Random(0).normal(4, 1024).to(device, dtype)
    packed = TORCH_OPS.pack_linear(matrix)
    TORCH_OPS.linear(x, packed)  # the libraries' own workspaces
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    out = TORCH_OPS.linear(x, packed)
    used = torch.cuda.max_memory_allocated(device) - before - out.nbytes
    assert used <= 1.1 * scratch_bytes


@DTYPES
@EVERY_KIND
def test_nothing_waits_for_the_device(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """Synchronising calls raise."""
    packed = TORCH_OPS.pack_linear(moved(RandomMatrices().by_name(kind)(257, 192), device))
    x = Random(0).normal(4, 192).to(device, dtype)
    expected = TORCH_OPS.linear(x, packed)  # the first call makes tables
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = TORCH_OPS.linear(x, packed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, expected)


def test_scales_are_put_in_order_on_the_device(device: torch.device) -> None:
    stored = torch.randint(0, 127, (256 * 8,), generator=torch.Generator().manual_seed(0)).byte()
    assert torch.equal(unswizzle_scales(stored.to(device), 256, 128).cpu(), unswizzle_scales(stored, 256, 128))
