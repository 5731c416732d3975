"""Products with quantised weights as the kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.matrices import Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia import linear_activations, linear_dequant, linear_gemv
from kernels_numba.nvidia.linear_formats import FORMATS, STEP_COLUMNS
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS, FUSED_COLUMNS
from kernels_numba.nvidia.linear_packing import packed_stream, stream_format
from kernels_numba.nvidia.linear_plan import shared_bytes
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.nvidia.emulator import launch
from tests.kernels_numba.weights import RandomMatrices, values

WARPS = 2
EVERY_KIND = pytest.mark.parametrize("kind", ["nvfp4", "fp8_row", "fp8_block", "q8", "q6", "q5", "q4", "bfloat16"])


def converted(x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    out = torch.full((columns * x.shape[1],), torch.nan).half()
    scales = torch.full((columns,), torch.nan)
    launch(
        linear_activations.source(columns),
        (2, columns, 1),
        CONVERTING_THREADS,
        [x.data_ptr(), out.data_ptr(), scales.data_ptr(), x.shape[0], x.shape[1]],
        [x, out, scales],
        shared_bytes=CONVERTING_THREADS // 8,
    )
    return out, scales


def product(
    x: Tensor,
    matrix: Matrix,
    *,
    columns: int,
    slices: int = 1,
    packed_slices: int = 1,
    blocks: int = 1,
    outputs: int | None = None,
    order: Callable[[list[tuple[int, ...]]], list[tuple[int, ...]]] = lambda blocks: blocks,
) -> Tensor:
    """``[rows, outputs]``, of which the kernel writes those of the matrix."""
    weights = stream_format(matrix)
    assert weights is not None
    stream, factors = packed_stream(matrix, weights, packed_slices)
    out = torch.full((x.shape[0], outputs or matrix.rows), torch.nan).bfloat16()
    partials = torch.full((slices * columns * matrix.rows,), torch.nan)
    counters = torch.zeros(blocks, dtype=torch.int32)
    fused = columns in FUSED_COLUMNS
    activations, scales = (x, x) if fused else converted(x, columns)
    tensors = [stream, activations, scales, out, factors, partials, counters]
    launch(
        linear_gemv.source(weights.name, columns, WARPS, fused),
        (blocks, slices, 1),
        32 * WARPS,
        [
            *(tensor.data_ptr() for tensor in tensors),
            x.shape[0],
            out.shape[1],
            *_steps(matrix, slices, packed_slices),
        ],
        tensors,
        shared_bytes=shared_bytes(weights, columns, matrix.columns // slices, WARPS),
        order=order,
        waits=linear_gemv.waits(weights.name),
    )
    assert not counters.any()
    return out


def _steps(matrix: Matrix, slices: int, packed_slices: int) -> tuple[int, ...]:
    steps, tiles = matrix.columns // slices // STEP_COLUMNS, matrix.rows // 16
    return (steps, tiles, tiles * steps, steps) if packed_slices > 1 else (steps, tiles, steps, slices * steps)


def assert_close(out: Tensor, x: Tensor, matrix: Matrix) -> None:
    """To the roundings of the sums and of the results; weights of the group formats are rounded to halves first."""
    expected, magnitudes = x.double() @ values(matrix).T, x.double().abs() @ values(matrix).abs().T
    rounding = 2**-11 if isinstance(matrix, GroupedMatrix) else 2**-20
    error = (out[:, : matrix.rows].double() - expected).abs()
    assert (error <= 2**-7.99 * expected.abs() + rounding * magnitudes).all(), (error / magnitudes).max()


def random_activations(rows: int, width: int) -> Tensor:
    """Rows of very different magnitudes, in which some values are much smaller than others."""
    random = Random(rows)
    sizes = torch.exp2(torch.arange(rows)[:, None] * 10.0 - 50)
    return (random.normal(rows, width) * sizes * torch.exp2(-random.normal(rows, width).abs())).bfloat16()


@EVERY_KIND
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 4), (8, 8), (11, 16)], ids=str)
def test_product(kind: str, rows: int, columns: int) -> None:
    """Five tiles of three steps on two blocks: warps share tiles, begin in the middle of one and end there."""
    matrix, x = RandomMatrices().by_name(kind)(80, 384), random_activations(rows, 384)
    assert_close(product(x, matrix, columns=columns, blocks=2), x, matrix)


@pytest.mark.parametrize("slices", [2, 4, 8])
@pytest.mark.parametrize("is_packed", [False, True], ids=["cut", "packed"])
def test_slices_meet_in_the_same_order_whoever_comes_last(slices: int, is_packed: bool) -> None:
    matrix, x = RandomMatrices().nvfp4(48, 1024), random_activations(3, 1024)
    packed_slices = slices if is_packed else 1
    out = product(x, matrix, columns=4, slices=slices, packed_slices=packed_slices, blocks=2, order=lambda b: b[::-1])
    assert_close(out, x, matrix)
    assert torch.equal(out, product(x, matrix, columns=4, slices=slices, blocks=2))


def test_one_warp_alone_and_idle_warps() -> None:
    matrix, x = RandomMatrices().nvfp4(16, 128), random_activations(1, 128)
    assert_close(product(x, matrix, columns=4), x, matrix)


def test_columns_of_a_wider_result() -> None:
    matrix, x = RandomMatrices().nvfp4(32, 256), random_activations(2, 256)
    out = product(x, matrix, columns=4, outputs=37)
    assert_close(out, x, matrix)
    assert out[:, 32:].isnan().all()


@EVERY_KIND
def test_rings_go_round(kind: str) -> None:
    matrix, x = RandomMatrices().by_name(kind)(32, 1280), random_activations(1, 1280)
    assert_close(product(x, matrix, columns=4), x, matrix)


def test_scales_and_codes_of_all_kinds() -> None:
    """Every finite E4M3 scale, of either sign, with every code; every E4M3 code; every int8."""
    codes = (torch.arange(16 * 128) * 37).to(torch.uint8).view(16, 128)
    scales = torch.arange(256).to(torch.uint8).view(16, 16)
    scales[(scales & 127) == 127] = 1
    x = random_activations(1, 256)
    for matrix in (
        Nvfp4Matrix(codes, scales, torch.linspace(0.1, 2, 16)),
        Fp8RowMatrix(scales.repeat(1, 16), torch.linspace(0.1, 2, 16)),
        Fp8BlockMatrix(scales.repeat(1, 16), torch.linspace(0.1, 2, 32).view(16, 2), torch.arange(16).flip(0).int()),
        GroupedMatrix(8, 256, torch.arange(256).to(torch.uint8).repeat(16, 1), None, torch.full((16, 8), 1e-6).half()),
    ):
        assert_close(product(x, matrix, columns=4), x, matrix)


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_every_code_at_every_place(bits: int) -> None:
    """Powers of two as scales leave nothing to round."""
    matrix = RandomMatrices(bits).grouped(bits)(16, 256)
    signs = torch.where(matrix.scales < 0, -1.0, 1.0)
    matrix = replace(matrix, scales=(signs * torch.exp2(torch.arange(64).view(16, 4) % 7 - 3.0)).half())
    assert torch.equal(dequantised(matrix, 0, 1).double(), values(matrix))
    assert len(torch.unique(values(replace(matrix, scales=torch.ones_like(matrix.scales))))) == 1 << bits


def test_scales_of_groups_from_subnormal_halves_to_the_largest() -> None:
    for bits in (5, 6):
        matrix, x = RandomMatrices().grouped(bits)(16, 256), random_activations(1, 256)
        exponents = torch.tensor([15, -24, -14, 15, -24, -20, -16, -14] * 8)
        scales = torch.exp2(exponents.float()).half().view(16, 4)
        for each in (scales, scales.neg(), torch.full_like(scales, 65504), torch.full_like(scales, 2.0**-24)):
            found = replace(matrix, scales=each)
            assert_close(product(x, found, columns=4), x, found)


def test_scales_of_blocks() -> None:
    """Each row takes its own: neighbours from different blocks, of float32's whole mantissa, zeros and any size."""
    matrix, x = RandomMatrices().fp8_block(48, 384), (2.0**30 * Random(0).normal(3, 384)).bfloat16()
    sizes = torch.tensor([1.0, 0.0, -3.0, 2.0**-140])[:, None]
    spread = matrix.scales * sizes * torch.tensor([1.0, 2.0**-12, 2.0**9])
    for scales in (matrix.scales, spread, matrix.scales * 2.0**60, matrix.scales * 2.0**-90, torch.zeros(4, 3)):
        each = replace(matrix, scales=scales)
        assert_close(product(x, each, columns=4, blocks=2), x, each)
    rows = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    found = product(x, matrix, columns=4)[:, rows]
    assert torch.equal(found, product(x, matrix.select_rows(rows), columns=4))


@pytest.mark.parametrize("kind", ["fp8_block", "q6", "q5"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["cut", "packed"])
def test_slices_of_other_formats(kind: str, is_packed: bool) -> None:
    matrix, x = RandomMatrices().by_name(kind)(32, 512), random_activations(11, 512)
    out = product(x, matrix, columns=16, slices=2, packed_slices=2 if is_packed else 1, blocks=2)
    assert_close(out, x, matrix)


@pytest.mark.parametrize("columns", [4, 8])
def test_rows_with_infinities_do_not_disturb_others(columns: int) -> None:
    matrix, x = RandomMatrices().nvfp4(16, 256), random_activations(4, 256)
    x[1, 7], x[2] = torch.inf, 0
    out = product(x, matrix, columns=columns)
    torch.testing.assert_close(out[1].double(), x[1].double() @ values(matrix).T, equal_nan=True)
    assert (out[2] == 0).all()
    assert_close(out[[0, 3]], x[[0, 3]], matrix)


def dequantised(matrix: Matrix, first: int, count: int, slices: int = 1) -> Tensor:
    """Tiles of 16 rows."""
    weights = stream_format(matrix)
    assert weights is not None
    stream, factors = packed_stream(matrix, weights, slices)
    steps = matrix.columns // STEP_COLUMNS // slices
    out = torch.full((16 * count, matrix.columns), torch.nan).bfloat16()
    launch(
        linear_dequant.source(weights.name),
        (-(-count * steps // DEQUANT_STEPS), slices, 1),
        32 * DEQUANT_STEPS,
        [stream.data_ptr(), factors.data_ptr(), out.data_ptr(), steps, matrix.rows // 16, first, count],
        [stream, factors, out],
    )
    return out


@EVERY_KIND
@pytest.mark.parametrize("slices", [1, 2])
def test_dequantise(kind: str, slices: int) -> None:
    matrix = RandomMatrices().by_name(kind)(80, 512)
    weights = stream_format(matrix)
    assert weights is not None
    first, count = 1, 3
    out = dequantised(matrix, first, count, slices)
    expected = values(matrix)[16 * first : 16 * (first + count)]
    if weights.row_factor_in_values:
        torch.testing.assert_close(out.double(), expected, atol=0, rtol=0 if kind == "bfloat16" else 2**-7.8)
    else:
        multiplier = matrix.planes["multiplier"][16 * first : 16 * (first + count), None].double()
        torch.testing.assert_close(out.double() * multiplier, expected, atol=0, rtol=1e-12)


def test_formats_have_their_sizes() -> None:
    bits = {name: 8 * weights.step_bytes / (16 * STEP_COLUMNS) for name, weights in FORMATS.items()}
    assert bits == {
        "nvfp4": 4.5,
        "q8": 8.5,
        "q4": 4.25,
        "q5": 5.25,
        "q6": 6.25,
        "fp8": 8.0,
        "fp8_block": 8.25,
        "bf16": 16.0,
    }
