"""Products with weights of every kind against their float64 values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.weights import KINDS, RandomMatrices, values

SHAPES = [(1, 64), (64, 128), (100, 192), (130, 320), (257, 64)]
UNEVEN = [(3, 1), (70, 130), (90, 101), (129, 257)]
"""Columns that are no multiple of anything."""
CASES = [(kind, shape) for kind in KINDS for shape in SHAPES + (UNEVEN if kind != "nvfp4" else [])]
EVERY_SHAPE = pytest.mark.parametrize(
    ("kind", "shape"), CASES, ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x))
)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def assert_close(out: Tensor, x: Tensor, *matrices: Matrix) -> None:
    """Within the rounding of float32 sums: measured against the sum of the magnitudes of all terms."""
    weights = torch.cat([values(matrix) for matrix in matrices])
    assert (out.dtype, out.shape) == (torch.float32, (x.shape[0], weights.shape[0]))
    error = (out.double() - x.double() @ weights.T).abs()
    assert (error <= 1e-6 * (x.double().abs() @ weights.abs().T)).all()


@pytest.mark.parametrize("rows", [0, 1, 5, 37])
@EVERY_SHAPE
def test_linear(ops: OpTable, kind: str, shape: tuple[int, int], rows: int) -> None:
    matrix = RandomMatrices().by_name(kind)(*shape)
    x = Random(rows).normal(rows, shape[1]).float()
    assert_close(ops.linear(x, ops.pack_linear(matrix)), x, matrix)


@EVERY_SHAPE
def test_reference(kind: str, shape: tuple[int, int]) -> None:
    matrix = RandomMatrices().by_name(kind)(*shape)
    torch.testing.assert_close(reference.dequantised(matrix), values(matrix), atol=0, rtol=0)


@EVERY_SHAPE
def test_bfloat16_activations(kind: str, shape: tuple[int, int]) -> None:
    """Weights and result are rounded to bfloat16, by 2**-8 each; sums are not."""
    matrix = RandomMatrices().by_name(kind)(*shape)
    x = Random(0).normal(5, shape[1]).bfloat16()
    out = TORCH_OPS.linear(x, TORCH_OPS.pack_linear(matrix))
    weights = values(matrix)
    exact = x.double() @ weights.T
    assert out.dtype == torch.bfloat16
    assert ((out.double() - exact).abs() <= 2**-6.9 * (x.double().abs() @ weights.abs().T)).all()


@pytest.mark.parametrize("kind", ["nvfp4", "fp8_row"])
def test_a_multiplier_is_not_rounded_to_bfloat16(kind: str) -> None:
    """Codes times scales are exact in bfloat16, so that only the result is rounded."""
    matrix = RandomMatrices().by_name(kind)(130, 320)
    x = Random(0).normal(5, 320).bfloat16()
    out = TORCH_OPS.linear(x, TORCH_OPS.pack_linear(matrix)).double()
    exact = x.double() @ values(matrix).T
    magnitudes = x.double().abs() @ values(matrix).abs().T
    assert ((out - exact).abs() <= 2**-7.99 * exact.abs() + 1e-6 * magnitudes).all()


def test_mixed_formats(ops: OpTable) -> None:
    """Rows come in the order given, whether or not neighbours are packed into one."""
    kinds = ["nvfp4", "bfloat16", "nvfp4", "nvfp4", "q4", "q5", "q4", "fp8_block", "fp8_block", "float32"]
    matrices = [RandomMatrices(seed).by_name(kind)(50 + seed, 192) for seed, kind in enumerate(kinds)]
    for rows in (1, 3, 20):
        x = Random(rows).normal(rows, 192).float()
        packed = ops.pack_linear(*matrices)
        assert packed.outputs == sum(matrix.rows for matrix in matrices)
        assert_close(ops.linear(x, packed), x, *matrices)


@EVERY_KIND
def test_neighbours_of_one_format(ops: OpTable, kind: str) -> None:
    matrices = [RandomMatrices(seed).by_name(kind)(rows, 192) for seed, rows in enumerate([1, 64, 70])]
    packed = ops.pack_linear(*matrices)
    assert len(packed.segments) == 1
    x = Random(0).normal(3, 192).float()
    assert_close(ops.linear(x, packed), x, *matrices)


@EVERY_KIND
def test_stacks(ops: OpTable, kind: str) -> None:
    """Packed at once, multiplied one by one."""
    gate, up = (RandomMatrices(seed).by_name(kind)(5, 70, 192) for seed in (0, 1))
    stack = ops.pack_linear(gate, up)
    assert stack.outputs == 140
    x = Random(0).normal(3, 192).float()
    for expert in range(5):
        assert_close(ops.linear(x, stack[expert]), x, gate[expert], up[expert])


@EVERY_KIND
def test_experts(ops: OpTable, kind: str) -> None:
    random = Random(0)
    x, routing, shared = random.normal(6, 128), random.normal(6, 5), random.normal(6, 128)
    gate_up, down = (
        RandomMatrices(seed).by_name(kind)(4, *shape) for seed, shape in enumerate([(128, 128), (128, 64)])
    )
    stacks = ops.pack_linear(gate_up), ops.pack_linear(down)
    out = ops.moe_experts(x.float(), routing.float(), *stacks, 2, shared.float())
    weights = [torch.stack([values(matrix[expert]) for expert in range(4)]) for matrix in (gate_up, down)]
    expected = reference.moe_experts(x, routing, weights[0], weights[1], 2, shared)
    assert (out.double() - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("rows", [2, 3, 4, 7, 8, 9, 33])
@EVERY_KIND
def test_a_row_does_not_depend_on_the_others(kind: str, rows: int) -> None:
    columns = 192 if kind == "nvfp4" else 301
    packed = CPU_OPS.pack_linear(RandomMatrices().by_name(kind)(90, columns))
    x = Random(rows).normal(rows, columns).float()
    x[1] = torch.nan
    together = CPU_OPS.linear(x, packed)
    alone = torch.cat([CPU_OPS.linear(row[None], packed) for row in x])
    assert torch.equal(together.view(torch.int32), alone.view(torch.int32))
    assert together[1].isnan().all()
    assert together[[row for row in range(rows) if row != 1]].isfinite().all()


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_rows_of_activations_may_lie_apart(ops: OpTable, rows: int) -> None:
    matrix = RandomMatrices().nvfp4(70, 64)
    wide = Random(0).normal(rows, 100).float()
    x = wide[:, 3:67]
    assert_close(ops.linear(x, ops.pack_linear(matrix)), x, matrix)
    x = Random(0).normal(64, rows).float().T
    assert_close(ops.linear(x, ops.pack_linear(matrix)), x, matrix)


@EVERY_KIND
def test_packed_weights_are_as_small_as_stored_ones(ops: OpTable, kind: str) -> None:
    """Within the multipliers, of which plain values have none, and the scales of a block that rows repeat."""
    matrix = RandomMatrices().by_name(kind)(192, 256)
    stored = sum(plane.nbytes for plane in matrix.planes.values())
    assert matrix.size_bytes == stored
    assert 0.98 * stored < ops.pack_linear(matrix).size_bytes < 1.02 * stored


@EVERY_KIND
def test_embedding(ops: OpTable, kind: str) -> None:
    matrix = RandomMatrices().by_name(kind)(70, 192)
    token_ids = torch.tensor([69, 3, 3, 0, 42])
    for dtype in (torch.float32, torch.bfloat16):
        rows = ops.embedding(token_ids, matrix, dtype)
        assert torch.equal(rows, values(matrix)[token_ids].float().to(dtype))
    assert ops.embedding(token_ids[:0], matrix, torch.float32).shape == (0, 192)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_every_nvfp4_code_and_scale(ops: OpTable, rows: int) -> None:
    """All 16 codes under all 127 scales, the zero and the subnormal ones among them: one weight each row."""
    scales = torch.arange(127, dtype=torch.uint8).repeat_interleave(16)
    codes = torch.arange(16, dtype=torch.uint8).repeat(127)
    planes = torch.zeros(127 * 16, 8, dtype=torch.uint8), scales[:, None]
    planes[0][:, 0] = codes | codes.flip(0) << 4
    matrix = Nvfp4Matrix(*planes, torch.linspace(0.5, 2, 127 * 16))
    assert_exact_weights(ops, matrix, rows)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_every_fp8_code(ops: OpTable, rows: int) -> None:
    """A NaN code makes its row NaN, and no other."""
    codes = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 3)
    codes[:, 1:] = 0x38
    scales = torch.tensor([[0.3], [7e-5]])
    block_of_row = torch.arange(256, dtype=torch.int32) % 2
    for matrix in (Fp8RowMatrix(codes, torch.full((256,), 0.3)), Fp8BlockMatrix(codes, scales, block_of_row)):
        assert int(values(matrix).isnan().any(1).sum()) == 2
        assert_exact_weights(ops, matrix, rows)


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("bits", [2, 4, 5, 6, 8])
def test_every_integer_code_and_extreme_scales(ops: OpTable, bits: int, rows: int) -> None:
    """Scales: zero, the smallest subnormal, the smallest normal, the largest, negative ones."""
    scales = torch.tensor([0, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x8001, 0xBC00], dtype=torch.int32).to(
        torch.int16
    )
    matrix = RandomMatrices().grouped(bits)(2**bits, 8 * 128)
    per_row = scales.view(torch.float16).repeat_interleave(matrix.scales.shape[1] // 8)
    matrix = GroupedMatrix(bits, matrix.columns, matrix.codes, matrix.high, per_row.expand(2**bits, -1).contiguous())
    found = {int(code) for code in (values(matrix)[:, 4 * 128 : 5 * 128]).flatten()}  # under the scale 1
    assert found == set(range(-(2 ** (bits - 1)), 2 ** (bits - 1)))
    assert_exact_weights(ops, matrix, rows)


def assert_exact_weights(ops: OpTable, matrix: Matrix, rows: int) -> None:
    """Products with unit vectors are the weights, rounded once to float32."""
    packed, weights = ops.pack_linear(matrix), values(matrix).float()
    weights[weights.isnan().any(1)] = torch.nan  # also times zero
    for first in range(0, matrix.columns, 97):
        x = torch.zeros(rows, matrix.columns)
        places = [(first + 5 * row) % matrix.columns for row in range(rows)]
        x[range(rows), places] = 1.0
        torch.testing.assert_close(ops.linear(x, packed), weights[:, places].T, atol=0, rtol=2**-23, equal_nan=True)


def test_grouped_scales_that_are_not_finite(ops: OpTable) -> None:
    matrix = RandomMatrices().grouped(4)(70, 128)
    matrix.scales[7, 1] = torch.nan
    out = ops.linear(torch.ones(2, 128), ops.pack_linear(matrix))
    assert out.isnan().any(0).nonzero().flatten().tolist() == [7]


def test_matrices_must_fit_together(ops: OpTable) -> None:
    random = RandomMatrices()
    with pytest.raises(ValueError, match=r"\[2, 64\], \[2, 72\]"):
        ops.pack_linear(random.float32(2, 64), random.float32(2, 72))
    with pytest.raises(ValueError, match=r"\[3, 2, 64\], \[2, 64\]"):
        ops.pack_linear(random.float32(3, 2, 64), random.nvfp4(2, 64))
    with pytest.raises(ValueError, match="none"):
        ops.pack_linear()


def test_rows_of_a_matrix() -> None:
    """Slices share memory, indices copy; both keep all scales of blocks."""
    matrix = RandomMatrices().fp8_block(300, 130)
    part = matrix.select_rows(slice(10, 20))
    assert part.codes.data_ptr() == matrix.codes[10:].data_ptr()
    assert torch.equal(values(part), values(matrix)[10:20])
    chosen = torch.tensor([299, 0])
    assert torch.equal(values(matrix.select_rows(chosen)), values(matrix)[chosen])


def test_scratch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows, the last of them short, give what one block gives."""
    matrices = [RandomMatrices().by_name(kind)(130, 192) for kind in KINDS]
    x = Random(0).normal(3, 192).float()
    whole = [TORCH_OPS.linear(x, TORCH_OPS.pack_linear(matrix)) for matrix in matrices]
    monkeypatch.setattr("kernels_numba.torch_ops.linear.SCRATCH_BYTES", 192 * 12 * 40)
    for matrix, expected in zip(matrices, whole, strict=True):
        out = TORCH_OPS.linear(x, TORCH_OPS.pack_linear(matrix))
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr("kernels_numba.torch_ops.linear.SCRATCH_BYTES", 1)
    assert_close(TORCH_OPS.linear(x, TORCH_OPS.pack_linear(matrices[2])), x, matrices[2])


def test_plain_weights_are_not_copied() -> None:
    matrix = RandomMatrices().float32(70, 64)
    (segment,) = TORCH_OPS.pack_linear(matrix).segments
    assert isinstance(segment, DenseMatrix)
    assert segment.values.data_ptr() == matrix.values.data_ptr()
