"""What lies between two mixers as its kernel computes it, instruction by instruction on the CPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.matrices import Matrix, Nvfp4Matrix
from kernels_numba.nvidia import linear_block
from kernels_numba.nvidia.linear_block_layout import COUNTER_STRIDE, COUNTERS_OF_GROUPS, Cut, Sizes, cut_of
from kernels_numba.nvidia.linear_formats import StreamFormat
from kernels_numba.nvidia.linear_packing import packed_stream, stream_format
from tests.kernels_numba.nvidia.emulator import launch
from tests.kernels_numba.weights import RandomMatrices, values

WARPS, EPS = 2, 1e-6
H200 = {"blocks": 132, "shared_bytes": 227 << 10}
SIZES_27B = Sizes(mixed_width=6144, width=5120, inner=17408, in_rows=16384, side_rows=96)


class Block:
    """Random weights, and launches of the kernel with them on the same counters."""

    def __init__(self, sizes: Sizes, blocks: int) -> None:
        self.sizes, self.blocks = sizes, blocks
        matrices = RandomMatrices()
        self.matrices: list[Matrix] = [
            _small(matrices.nvfp4(sizes.width, sizes.mixed_width)),
            _small(matrices.nvfp4(2 * sizes.inner, sizes.width)),
            _small(matrices.nvfp4(sizes.width, sizes.inner)),
            _small(matrices.nvfp4(max(16, sizes.in_rows), sizes.width)),
            matrices.bfloat16(max(16, sizes.side_rows), sizes.width),
        ]
        self.norms = torch.rand(2, sizes.width, generator=torch.Generator().manual_seed(2)) + 0.5
        self.counters = torch.zeros(COUNTERS_OF_GROUPS + blocks, COUNTER_STRIDE, dtype=torch.int32)

    def run(self, residual: Tensor, mixed: Tensor, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The new residual, and three columns more of results than there are."""
        sizes, rows = self.sizes, residual.shape[0]
        cut = cut_of(sizes, columns, self.blocks, 227 << 10, WARPS)
        assert cut is not None
        total = torch.full_like(residual, torch.nan)
        out = torch.full((rows, sizes.in_rows + sizes.side_rows + 3), torch.nan).bfloat16()
        streams = [each for matrix in self.matrices for each in packed_stream(matrix, _format(matrix), 1)]
        tensors = [*streams, mixed, residual, *self.norms, total, out, *self._workspace(cut), self.counters]
        numbers = [sizes.mixed_width, sizes.width, sizes.inner, sizes.in_rows, sizes.side_rows, out.shape[1]]
        launch(
            linear_block.source(columns, WARPS),
            (self.blocks, 1, 1),
            32 * (WARPS + 1),
            [
                *(tensor.data_ptr() for tensor in tensors),
                rows,
                *numbers,
                *(cut.out_slices, cut.down_slices, cut.in_tiles_beside, cut.slots, 4 if sizes.in_rows else 3, EPS),
            ],
            tensors,
            shared_bytes=cut.shared_bytes,
            order=lambda blocks: random.Random(seed).sample(blocks, len(blocks)),
            waits=linear_block.waits(columns),
            together=True,
        )
        return total, out

    def _workspace(self, cut: Cut) -> list[Tensor]:
        """Poisoned."""
        slices = max(cut.out_slices, cut.down_slices)
        return [
            torch.full((slices * self.sizes.width * 8,), torch.nan),
            torch.full((8, self.sizes.inner), torch.nan).bfloat16(),
            torch.full((8, self.sizes.width), torch.nan).bfloat16(),
            torch.full((2, self.blocks, 8), torch.nan),
        ]

    def expected(self, residual: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """In float64."""
        out, gate_up, down, following, side = (values(matrix) for matrix in self.matrices)
        middle = residual.double() + mixed.double() @ out.T
        gate, up = (_normed(middle, self.norms[0]) @ gate_up.T).chunk(2, -1)
        total = middle + (gate * torch.sigmoid(gate) * up) @ down.T
        rows = torch.cat([following[: self.sizes.in_rows], side[: self.sizes.side_rows]])
        return total, _normed(total, self.norms[1]) @ rows.T


def _small(matrix: Nvfp4Matrix) -> Nvfp4Matrix:
    return replace(matrix, multiplier=matrix.multiplier * 0.05)


def _format(matrix: Matrix) -> StreamFormat:
    weights = stream_format(matrix)
    assert weights is not None
    return weights


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight.double() * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def inputs(rows: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Rows of different magnitudes."""
    generator = torch.Generator().manual_seed(rows)
    scale = torch.exp2(torch.arange(rows)[:, None] * 4.0 - 8)
    residual = torch.randn(rows, sizes.width, generator=generator) * scale
    return residual.bfloat16(), (torch.randn(rows, sizes.mixed_width, generator=generator) * scale).bfloat16()


def assert_close(found: Tensor, expected: Tensor) -> None:
    """By row, to three roundings to bfloat16 on the way."""
    error = (found.double() - expected).norm(dim=1) / expected.norm(dim=1)
    assert (error < 7e-3).all(), error


@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "sizes"),
    [
        (1, 1, 4, Sizes(256, 256, 256, 128, 16)),
        (3, 4, 4, Sizes(256, 256, 256, 256, 32)),
        (5, 8, 9, Sizes(256, 256, 256, 400, 16)),
    ],
    ids=["1 row of 1", "3 of 4", "5 of 8, idle blocks"],
)
def test_twice_on_the_same_counters(rows: int, columns: int, blocks: int, sizes: Sizes) -> None:
    block, (residual, mixed) = Block(sizes, blocks), inputs(rows, sizes)
    total, out = block.run(residual, mixed, columns)
    for found, expected in zip((total, out[:, :-3]), block.expected(residual, mixed), strict=True):
        assert_close(found, expected)
    assert out[:, -3:].isnan().all()
    again = block.run(residual, mixed, columns, seed=1)
    assert torch.equal(total, again[0])
    assert torch.equal(out[:, :-3], again[1][:, :-3])


def test_the_last_layer_ends_with_its_residual() -> None:
    sizes = Sizes(512, 256, 384, 0, 0)
    block, (residual, mixed) = Block(sizes, 6), inputs(8, sizes)
    total, out = block.run(residual, mixed, 8)
    assert_close(total, block.expected(residual, mixed)[0])
    assert out.isnan().all()


def test_what_is_not_finite_stays_in_its_row() -> None:
    sizes = Sizes(256, 256, 256, 128, 16)
    block, (residual, mixed) = Block(sizes, 4), inputs(4, sizes)
    residual[1, 7], mixed[2, 9] = torch.inf, torch.nan
    total, out = block.run(residual, mixed, 4)
    assert not total[1:3].isfinite().all(1).any()
    assert not out[1:3, :-3].isfinite().any()
    kept = [0, 3]
    for found, expected in zip((total, out[:, :-3]), block.expected(residual, mixed), strict=True):
        assert_close(found[kept], expected[kept])


@pytest.mark.parametrize("columns", [1, 4, 8])
def test_a_27b_fits_an_h200(columns: int) -> None:
    cut = cut_of(SIZES_27B, columns, **H200)
    assert cut is not None
    assert (cut.out_slices, cut.down_slices, cut.in_tiles_beside) == (4, 4, 4)
    assert cut.slots == 16 + 2 * 9  # tiles of gate and up: 1088 each on 132 blocks
    assert cut.shared_bytes <= 227 << 10


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        (replace(SIZES_27B, inner=17408 + 64), H200),
        (replace(SIZES_27B, side_rows=90), H200),
        (replace(SIZES_27B, width=8192), H200),
        (replace(SIZES_27B, in_rows=1024), H200),
        (SIZES_27B, {**H200, "shared_bytes": 163 << 10}),
        (SIZES_27B, {**H200, "blocks": 170}),
    ],
    ids=["part of a step", "part of a tile", "too wide", "idle warps", "too little memory", "too many blocks"],
)
def test_what_the_kernel_does_not_take(sizes: Sizes, limits: dict[str, int]) -> None:
    assert cut_of(sizes, 8, **limits) is None
