"""Products by CUDA kernels against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba.matrices import GroupedMatrix, Matrix, Nvfp4Matrix, joined
from kernels_numba.nvidia import linear_ops
from kernels_numba.nvidia.linear import (
    STREAMED_ROWS,
    Activations,
    StreamSegment,
    linear,
    pack_linear,
    stream_product,
    stream_segment,
)
from kernels_numba.nvidia.linear_formats import FURTHER_FORMATS
from kernels_numba.nvidia.linear_packing import stream_format
from kernels_numba.selection import ops_for
from tests.kernels_numba.weights import RandomMatrices, values

pytestmark = pytest.mark.gpu

STREAMED = ("nvfp4", "fp8_row", "fp8_block", "q8", "q6", "q5", "q4")
ROWS = pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 8, 11, 16, 17, 40, 96, 97, 300])


def moved(matrix: Matrix, device: torch.device) -> Matrix:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return replace(matrix, **planes)


def activations(rows: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    sizes = torch.exp2(torch.randint(-20, 20, (rows, 1), generator=generator))
    return (torch.randn(rows, width, generator=generator) * sizes).bfloat16()


def report(name: str, out: Tensor, x: Tensor, weights: Tensor, rounding: float = 2**-7.99, sums: float = 2**-9) -> None:
    """Largest error against the result, beyond what sums of rounded weights may be off by."""
    assert out.dtype == torch.bfloat16
    expected, magnitudes = x.double() @ weights.T, x.double().abs() @ weights.abs().T
    error = (out.cpu().double() - expected).abs()
    worst = float((error / magnitudes.clamp_min(1e-300)).max()) if out.numel() else 0.0
    print(f"{name} {list(out.shape)}: {worst:.1e} of the sum of magnitudes")
    assert (error <= rounding * expected.abs() + sums * magnitudes).all()


@pytest.mark.parametrize("kind", STREAMED)
@ROWS
def test_product(device: torch.device, kind: str, rows: int) -> None:
    matrix, x = RandomMatrices().by_name(kind)(304, 1280), activations(rows, 1280)
    packed = pack_linear(moved(matrix, device))
    assert isinstance(packed.segments[0], StreamSegment)
    exact = kind in ("nvfp4", "fp8_row") or (kind == "fp8_block" and rows <= STREAMED_ROWS)  # what a bfloat16 holds
    out = linear(x.to(device), packed)
    report(kind, out, x, values(matrix), sums=2e-6 if exact else 2**-8)


@pytest.mark.parametrize("rows", [1, 3, 8, 16])
@pytest.mark.parametrize("slices", [1, 2, 4, 8])
def test_slices_give_the_same_result_every_time(device: torch.device, slices: int, rows: int) -> None:
    matrix, x = RandomMatrices(slices).nvfp4(5120, 2048), activations(rows, 2048)
    weights = stream_format(matrix)
    assert weights is not None
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    segment = stream_segment(moved(matrix, device), weights, slices, multiprocessors)
    results = []
    for _ in range(20):
        out = torch.full((rows, 5120), torch.nan, device=device, dtype=torch.bfloat16)
        stream_product(Activations(x.to(device)), segment, out)
        results.append(out)
    report(f"{slices} slices", results[0], x, values(matrix), sums=2e-6)
    assert all(torch.equal(out, results[0]) for out in results)
    assert not segment.counters.any()


@pytest.mark.parametrize("rows", [2, 130])
def test_parts_with_multipliers_of_their_own_beside_other_formats(device: torch.device, rows: int) -> None:
    random = RandomMatrices()
    parts = [replace(random.nvfp4(n, 640), multiplier=torch.full((n,), 0.3 / n)) for n in (256, 64, 64)]
    matrices: list[Matrix] = [*parts, random.bfloat16(48, 640), random.grouped(8)(32, 640)]
    packed = pack_linear(*(moved(matrix, device) for matrix in matrices))
    assert packed.outputs == 464
    x = activations(rows, 640)
    report("mixed", linear(x.to(device), packed), x, torch.cat([values(m) for m in joined(matrices)]), sums=2**-8)


def test_a_multiplier_is_not_rounded_to_bfloat16(device: torch.device) -> None:
    """Also not where many rows are multiplied, whether few or many rows of weights have the same."""
    matrix, x = RandomMatrices().nvfp4(160, 640), activations(200, 640)
    for multiplier in (matrix.multiplier, torch.full((160,), 0.3)):
        each = replace(matrix, multiplier=multiplier)
        out = linear(x.to(device), pack_linear(moved(each, device)))
        report("many rows", out, x, values(each), sums=2e-6)


@pytest.mark.parametrize("kind", ["nvfp4", "q8"])
@pytest.mark.parametrize("shape", [(100, 640), (96, 624), (16, 16)], ids=str)
def test_torch_takes_shapes_without_whole_tiles(device: torch.device, kind: str, shape: tuple[int, int]) -> None:
    matrix, x = RandomMatrices().by_name(kind)(*shape), activations(3, shape[1])
    report("torch", linear(x.to(device), pack_linear(moved(matrix, device))), x, values(matrix))


def test_stacks(device: torch.device) -> None:
    matrix, x = RandomMatrices().nvfp4(3, 48, 256), activations(5, 256)
    packed = pack_linear(moved(matrix, device))
    for index in range(3):
        report("stack", linear(x.to(device), packed[index]), x, values(matrix[index]), sums=2e-6)


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_captured_products_follow_their_input(device: torch.device, rows: int) -> None:
    matrix = RandomMatrices().nvfp4(5120, 2048)
    packed = pack_linear(moved(matrix, device))
    x = activations(rows, 2048).to(device)
    linear(x, packed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear(x, packed)
    for seed in (1, 2):
        x.copy_(torch.randn(rows, 2048, generator=torch.Generator().manual_seed(seed)).bfloat16())
        graph.replay()
        report("replayed", out, x.cpu(), values(matrix), sums=2e-6)


@pytest.mark.parametrize("rows", [4, 8])
def test_what_is_not_finite_stays_in_its_row(device: torch.device, rows: int) -> None:
    matrix, x = RandomMatrices().nvfp4(64, 512), activations(rows, 512)
    x[1, 3], x[2, 500] = torch.inf, torch.nan
    out = linear(x.to(device), pack_linear(moved(matrix, device)))
    assert not out[1:3].isfinite().any()
    kept = [0, *range(3, rows)]
    report("finite", out[kept], x[kept], values(matrix), sums=2e-6)


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "columns"), [(34816, 5120), (5120, 17408), (16480, 5120), (5120, 6144), (248320, 5120)], ids=str
)
@pytest.mark.parametrize("kind", ["nvfp4", "q8"])
def test_shapes_of_a_27b(device: torch.device, kind: str, rows: int, columns: int) -> None:
    """Rows drawn from all over the matrix, for the widths of speculation."""
    torch.manual_seed(0)
    matrix: Matrix
    if kind == "nvfp4":
        scales = torch.randint(1, 127, (rows, columns // 16), device="cuda", dtype=torch.uint8)
        matrix = Nvfp4Matrix(random_bytes(rows, columns // 2), scales, torch.rand(rows, device="cuda") + 0.1)
    else:
        scales = torch.randn(rows, columns // 32, device="cuda").half()
        matrix = GroupedMatrix(8, columns, random_bytes(rows, columns), None, scales)
    drawn = torch.cat([torch.randint(0, rows, (200,), device="cuda"), torch.tensor([0, rows - 1], device="cuda")])
    sample = values(moved(matrix.select_rows(drawn), torch.device("cpu")))
    packed = pack_linear(matrix)
    for count in (1, 4, 8, 16):
        x = torch.randn(count, columns, device="cuda", dtype=torch.bfloat16)
        out = linear(x, packed)
        report(f"{kind} {rows} x {columns}", out[:, drawn], x.cpu(), sample, sums=2e-6 if kind == "nvfp4" else 2**-11)


def test_the_self_test_passes_and_finds_faults(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    linear_ops.check(device)
    linear_ops.check(device, FURTHER_FORMATS)
    assert ops_for(device, torch.bfloat16).linear is linear
    assert ops_for(device, torch.bfloat16).pack_linear is pack_linear
    monkeypatch.setattr(linear_ops, "TOLERANCE", 1e-9)
    with pytest.raises(Exception, match=r"gemv_nvfp4_m4\w* differs from its reference"):
        linear_ops.check(device)
