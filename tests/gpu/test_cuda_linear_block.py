"""What lies between two mixers by its CUDA kernel against float64, and against one op after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.matrices import DenseMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia import linear_block_ops
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.linear import pack_linear
from kernels_numba.nvidia.linear_block_kernels import BLOCK_ARCHS, BLOCK_COLUMNS
from kernels_numba.nvidia.linear_block_ops import dense_block
from kernels_numba.shapes import DenseBlockWeights

pytestmark = pytest.mark.gpu

WIDTH, MIXED, INNER, IN, SIDE = 2560, 2048, 4608, 4096, 96
"""Small, with work for every warp of a large device."""
EPS, ROUNDING, ROUNDING_BETWEEN_OPS = 1e-6, 7e-3, 1.2e-2
ROWS = pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 40])


class Block:
    """Random weights, in float64 and on the device."""

    def __init__(self, device: torch.device, following: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)

        def nvfp4(rows: int, columns: int) -> Matrix:
            codes = torch.randint(0, 256, (rows, columns // 2), generator=generator).to(torch.uint8)
            scales = torch.randint(0, 127, (rows, columns // 16), generator=generator).to(torch.uint8)
            return Nvfp4Matrix(codes, scales, torch.full((rows,), 2e-4))

        out, gate_up, down = nvfp4(WIDTH, MIXED), nvfp4(2 * INNER, WIDTH), nvfp4(WIDTH, INNER)
        plain = DenseMatrix(torch.randn(SIDE, WIDTH, generator=generator).bfloat16())
        ins: list[Matrix] = [nvfp4(IN, WIDTH), plain] if following else []
        norms = torch.rand(2, WIDTH, generator=generator) + 0.5
        self.norm, self.next_norm = norms.to(device)
        self.values = [reference.dequantised(each).to(device) for each in (out, gate_up, down, *ins)]
        out_proj, packed_gate_up, packed_down = (pack_linear(_moved(each, device)) for each in (out, gate_up, down))
        in_proj = pack_linear(*(_moved(each, device) for each in ins)) if ins else None
        self.weights = DenseBlockWeights(out_proj, self.norm, packed_gate_up, packed_down, self.next_norm, in_proj, EPS)

    def check(self, residual: Tensor, mixed: Tensor) -> None:
        """Every row to three roundings to bfloat16 on the way, or to one after each op where there are many rows."""
        bound = ROUNDING if len(residual) <= BLOCK_COLUMNS[-1] else ROUNDING_BETWEEN_OPS
        found, expected = dense_block(residual, mixed, self.weights), self.expected(residual, mixed)
        for name, each, exact in zip(("residual", "projected"), found, expected, strict=True):
            error = ((each.double() - exact).norm(dim=1) / exact.norm(dim=1)).max().item()
            print(f"{name} {list(each.shape)}: {error:.1e}")
            assert error < bound

    def expected(self, residual: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        out, gate_up, down, *ins = self.values
        middle, normed = reference.add_rms_norm(residual.double(), mixed.double() @ out.T, self.norm.double(), EPS)
        transformed = reference.silu_mul(normed @ gate_up.T) @ down.T
        total, normed = reference.add_rms_norm(middle, transformed, self.next_norm.double(), EPS)
        return total, normed @ torch.cat(ins).T if ins else normed


def _moved(matrix: Matrix, device: torch.device) -> Matrix:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return replace(matrix, **planes)


def inputs(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of very different magnitudes."""
    generator = torch.Generator().manual_seed(rows)
    sizes = torch.exp2(torch.randint(-9, 9, (rows, 1), generator=generator))
    residual, mixed = (torch.randn(rows, width, generator=generator) * sizes for width in (WIDTH, MIXED))
    return residual.bfloat16().to(device), mixed.bfloat16().to(device)


@pytest.fixture(scope="module")
def block() -> Block:
    return Block(torch.device("cuda"))


@ROWS
def test_dense_block(block: Block, device: torch.device, rows: int) -> None:
    block.check(*inputs(rows, device))


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_the_last_layer_ends_normed(device: torch.device, rows: int) -> None:
    Block(device, following=False).check(*inputs(rows, device))


def test_one_launch(block: Block, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device_of(device).arch not in BLOCK_ARCHS:
        pytest.skip("no block kernel for this device: one op after the other serves it")
    monkeypatch.setattr(linear_block_ops, "_one_after_the_other", None)
    block.check(*inputs(3, device))


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_replays_and_launches_one_after_the_other_agree(block: Block, device: torch.device, rows: int) -> None:
    residual, mixed = inputs(rows, device)
    expected = dense_block(residual, mixed, block.weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = dense_block(residual, mixed, block.weights)
        second = dense_block(first[0], mixed, block.weights)
    for _ in range(20):
        graph.replay()
        assert all(torch.equal(found, each) for found, each in zip(first, expected, strict=True))
    following = dense_block(expected[0], mixed, block.weights)
    assert all(torch.equal(found, each) for found, each in zip(second, following, strict=True))


@pytest.mark.parametrize("rows", [4, 8])
def test_what_is_not_finite_stays_in_its_row(block: Block, device: torch.device, rows: int) -> None:
    residual, mixed = inputs(rows, device)
    residual[1, 2000], mixed[2, 5] = torch.inf, torch.nan
    total, projected = dense_block(residual, mixed, block.weights)
    assert not total[1:3].isfinite().all(1).any()
    assert not projected[1:3].isfinite().any()
    kept = [0, *range(3, rows)]
    for found, exact in zip((total, projected), block.expected(residual, mixed), strict=True):
        assert ((found[kept].double() - exact[kept]).norm(dim=1) / exact[kept].norm(dim=1)).max() < ROUNDING
