"""How products choose, call and cut up their kernels, with an emulator in place of a device."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.nvidia import linear, linear_ops
from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.linear import StreamSegment, decoded_product, pack_linear
from kernels_numba.nvidia.linear_formats import FORMATS, FURTHER_FORMATS, NVFP4, Q8
from kernels_numba.nvidia.linear_kernels import GEMV_COLUMNS, gemv_name
from kernels_numba.nvidia.linear_plan import Limits, pass_of, shared_bytes, slices_of, warps_of
from kernels_numba.nvidia.registry import BY_NAME
from tests.kernels_numba.nvidia.emulator import launch
from tests.kernels_numba.weights import RandomMatrices, values

H200 = Limits(multiprocessors=132, shared_bytes=227 << 10, warps=16)
RTX_5090 = Limits(multiprocessors=170, shared_bytes=99 << 10, warps=8)


@dataclass
class EmulatedDevice:
    """Takes launches as ``launch.Device`` does."""

    arch: str = "sm_86"
    multiprocessors: int = 2
    shared_bytes_per_block: int = 99 << 10
    launched: list[str] | None = None

    def kernel(self, name: str) -> Callable[..., None]:
        spec = BY_NAME[name]
        assert self.arch in spec.archs
        module = importlib.import_module(f"kernels_numba.nvidia.{spec.module}")

        def call(
            grid: tuple[int, int, int], *arguments: Any, shared_bytes: int = 0, programmatic: bool = False
        ) -> None:
            assert len(arguments) == len(spec.signature)
            assert shared_bytes <= self.shared_bytes_per_block
            if self.launched is not None:
                self.launched.append(name)
            alive = [each for each in gc.get_objects() if type(each) is Tensor and each.device.type == "cpu"]
            source = module.source(*spec.arguments)
            launch(
                source, grid, spec.threads, arguments, alive, shared_bytes=shared_bytes, names=["WAIT", "ALL_COPIED"]
            )

        return call


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    found = EmulatedDevice(launched=[])
    for module in (linear, linear_ops):
        monkeypatch.setattr(module, "device_of", lambda _: found)
    return found


def close(out: Tensor, x: Tensor, weights: Tensor, sums: float = 2e-6) -> bool:
    expected, magnitudes = x.double() @ weights.T, x.double().abs() @ weights.abs().T
    error = (out.double() - expected).abs()
    return bool((error <= 2**-7.99 * expected.abs() + sums * magnitudes).all())


@pytest.mark.parametrize(
    ("rows", "kernels"),
    [
        (0, []),
        (2, ["gemv_nvfp4_m4_w8"]),
        (7, ["activations_m8", "gemv_nvfp4_m8_w8"]),
        (8, ["activations_m8", "gemv_nvfp4_m8_w8"]),
        (17, ["activations_m16", "gemv_nvfp4_m16_w8", "gemv_nvfp4_m4_w8"]),
    ],
    ids=str,
)
def test_few_rows(device: EmulatedDevice, rows: int, kernels: list[str]) -> None:
    matrix, x = RandomMatrices().nvfp4(48, 128), torch.randn(rows, 128).bfloat16()
    assert close(linear.linear(x, pack_linear(matrix)), x, values(matrix))
    assert device.launched == kernels


def test_mixed_formats_keep_their_order(device: EmulatedDevice) -> None:
    random, x = RandomMatrices(), torch.randn(3, 256).bfloat16()
    matrices = random.nvfp4(32, 256), random.bfloat16(5, 256), random.fp8_row(16, 256), random.nvfp4(8, 256)
    packed = pack_linear(*matrices)
    assert [type(segment) is StreamSegment for segment in packed.segments] == [True, False, True, False]
    weights = torch.cat([values(matrix) for matrix in matrices])
    assert packed.outputs == 61
    assert close(linear.linear(x, packed), x, weights, sums=2**-8)


def test_a_few_plain_rows_go_with_the_others(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their activations are converted once for all."""
    random, x = RandomMatrices(), torch.randn(6, 128).bfloat16()
    matrices = random.nvfp4(16, 128), random.bfloat16(16, 128)
    packed = pack_linear(*matrices)
    assert close(linear.linear(x, packed), x, torch.cat([values(matrix) for matrix in matrices]))
    assert device.launched == ["activations_m8", "gemv_nvfp4_m8_w8", "gemv_bf16_m8_w8"]
    assert pack_linear(matrices[1]).segments == (matrices[1],)
    monkeypatch.setattr(linear, "FEW_PLAIN_ROWS", 8)
    assert pack_linear(*matrices).segments[1] is matrices[1]


def test_many_rows_have_their_weights_decoded_in_parts(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products themselves are torch's, here of what was decoded."""
    multiplier = torch.tensor([0.3] * 20 + [0.7] * 60)
    matrix = replace(RandomMatrices().nvfp4(80, 256), multiplier=multiplier)
    (segment,) = pack_linear(matrix).segments
    assert isinstance(segment, StreamSegment)
    assert [(begin, end) for begin, end, _ in segment.runs[0]] == [(0, 20), (20, 80)]
    monkeypatch.setattr(linear, "DECODED_BYTES", 2 * 256 * 40)  # two tiles
    x, out = torch.randn(9, 256).bfloat16(), torch.full((9, 80), torch.nan).bfloat16()
    decoded_product(x, segment, out)
    assert device.launched == ["dequant_nvfp4"] * 3
    assert close(out, x, values(matrix), sums=2**-8)


def test_a_stack_is_indexed(device: EmulatedDevice) -> None:
    matrix, x = RandomMatrices().nvfp4(2, 3, 16, 128), torch.randn(1, 128).bfloat16()
    packed = pack_linear(matrix)
    segment = packed[1][2].segments[0]
    assert isinstance(segment, StreamSegment)
    assert len(segment.runs) == 1
    assert close(linear.linear(x, packed[1][2]), x, values(matrix[1][2]))


def test_other_types_are_refused(device: EmulatedDevice) -> None:
    packed = pack_linear(RandomMatrices().nvfp4(16, 128))
    with pytest.raises(TypeError, match=r"bfloat16 activations, not torch\.float32"):
        linear.linear(torch.zeros(1, 128), packed)


@pytest.mark.parametrize(
    ("rows", "columns", "slices"),
    [(34816, 5120, 1), (5120, 17408, 4), (5120, 6144, 1), (14336, 5120, 1), (16480, 5120, 1), (248320, 5120, 1)],
    ids=str,
)
def test_slices_on_an_h200(rows: int, columns: int, slices: int) -> None:
    assert slices_of(NVFP4, rows, columns, H200) == slices


@pytest.mark.parametrize("limits", [H200, RTX_5090], ids=["H200", "RTX 5090"])
@pytest.mark.parametrize("weights", FORMATS.values(), ids=lambda weights: weights.name)
@pytest.mark.parametrize(("rows", "columns"), [(34816, 5120), (5120, 17408), (248320, 5120), (16, 128)], ids=str)
def test_every_choice_has_room(weights: Any, rows: int, columns: int, limits: Limits) -> None:
    for count in range(1, 97):
        chosen, slices = pass_of(weights, rows, columns, limits, count)
        assert columns // 128 % slices == 0
        assert shared_bytes(weights, chosen, columns // slices, limits.warps) <= limits.shared_bytes
        assert chosen >= min(count, 4 if limits is RTX_5090 else 16)


def test_a_packed_cut_is_kept() -> None:
    assert pass_of(NVFP4, 34816, 5120, H200, 8) == (8, 1)
    assert pass_of(NVFP4, 34816, 5120, H200, 16) == (16, 4)
    assert pass_of(NVFP4, 34816, 5120, H200, 8, packed_slices=2) == (8, 2)


def test_no_choice_where_nothing_fits() -> None:
    assert slices_of(Q8, 16, 128, replace(H200, shared_bytes=48 << 10)) is None


def test_the_declared_kernels_are_those_that_are_called() -> None:
    for arch in ("sm_80", "sm_86", "sm_120a"):
        for name in FORMATS:
            for columns in GEMV_COLUMNS:
                spec: KernelSpec = BY_NAME[gemv_name(name, columns, warps_of(arch))]
                assert arch in spec.archs


def test_the_self_test_finds_a_wrong_kernel(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_ops, "ROWS", 32)
    monkeypatch.setattr(linear_ops, "COLUMNS", 256)
    monkeypatch.setattr(linear_ops, "GEMV_COLUMNS", (4,))
    monkeypatch.setattr(linear, "MOST_RUNS", 32)  # torch has no product of bfloat16 with sums in float32 on a CPU
    linear_ops.check(torch.device("cpu"))
    linear_ops.check(torch.device("cpu"), FURTHER_FORMATS)
    monkeypatch.setattr(device, "kernel", lambda name: lambda *_, **__: None)
    with pytest.raises(Exception, match="gemv_nvfp4_m4_w8 differs from its reference by nan"):
        linear_ops.check(torch.device("cpu"))
    with pytest.raises(Exception, match=r"gemv_q5_m4_w8 differs from its reference by nan"):
        linear_ops.check(torch.device("cpu"), FURTHER_FORMATS)


@pytest.mark.parametrize("kind", ["q5", "q6", "fp8_block"])
def test_formats_with_a_self_test_of_their_own_are_packed_if_it_passes(device: EmulatedDevice, kind: str) -> None:
    """And never fail the others: what the group itself loads and packs is without them."""
    (variant,) = linear_ops.GROUP.variants
    matrix, x = RandomMatrices().by_name(kind)(32, 256), torch.randn(3, 256).bfloat16()
    assert linear_ops.GROUP.ops["pack_linear"](matrix).segments == (matrix,)
    packed = variant.ops["pack_linear"](matrix)
    assert isinstance(packed.segments[0], StreamSegment)
    assert close(linear.linear(x, packed), x, values(matrix), sums=2**-11)
    assert device.launched == [gemv_name(kind, 4, 8)]
    assert set(device.launched) <= set(variant.kernels)
    assert not set(linear_ops.GROUP.kernels) & set(variant.kernels)
