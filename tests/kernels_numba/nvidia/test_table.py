"""Which ops kernels serve, and what the journal says of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.nvidia import table
from kernels_numba.nvidia.launch import CudaError
from kernels_numba.nvidia.self_test import KernelMismatchError, OpGroup, assert_close, run_self_tests
from kernels_numba.nvidia.table import GROUPS, cuda_ops
from kernels_numba.ops import OpTable
from kernels_numba.selection import ops_for
from kernels_numba.torch_ops.table import TORCH_OPS


def op(*_: Any) -> None:
    """Stands for one."""


def group(name: str, error: Exception | None = None, found: tuple[float, ...] = ()) -> OpGroup:
    """One of an op of its name, whose check compares numbers ``found`` with 1, within 0.1, 0.2 and so on."""

    def check(device: torch.device) -> None:
        for index, number in enumerate(found, 1):
            assert_close(f"{name}_{index}", torch.tensor([number]), torch.tensor([1.0]), index / 10)
        if error:
            raise error

    return OpGroup(name, kernels=(f"{name}_kernel",), ops={name: op}, check=check)


def fake_device(unloadable: str = "") -> Any:
    def load(names: tuple[str, ...]) -> None:
        if unloadable in names:
            raise CudaError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")

    return SimpleNamespace(index=0, load=load, arch="sm_90")


def test_a_group_that_fails_is_named_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    groups = group("rms_norm"), group("silu_mul", KernelMismatchError("silu differs\nat 3")), group("linear")
    reports = run_self_tests(groups, fake_device("linear_kernel"))
    assert [(report.name, report.implementation, report.fallback_reason) for report in reports] == [
        ("rms_norm", "cuda", ""),
        ("silu_mul", "torch", "KernelMismatchError: silu differs"),
        ("linear", "torch", "CudaError: cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "torch serves silu_mul instead of CUDA kernels: KernelMismatchError: silu differs" in caplog.text
    assert "torch serves linear instead of CUDA kernels: CudaError: cuModuleLoadData" in caplog.text


def test_the_check_that_comes_closest_to_its_limit_is_reported() -> None:
    """0.08 of 0.1 is closer than 0.1 of 0.2; what another group found before does not count."""
    first, second = run_self_tests((group("linear", found=(1.09,)), group("norms", found=(1.08, 1.1))), fake_device())
    assert (first.checks, second.checks) == (1, 2)
    assert second.worst is not None
    assert (second.worst.kernel, round(second.worst.error, 3), second.worst.limit) == ("norms_1", 0.08, 0.1)
    assert str(second).startswith("norms cuda (2 checks, worst norms_1 8.0e-02 of 1.0e-01, ")


def test_a_table_has_the_ops_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "GROUPS", (group("rms_norm"), group("silu_mul", ValueError("no"))))
    monkeypatch.setattr(table, "device_of", lambda _: fake_device())
    found = cuda_ops.__wrapped__(torch.device("cuda"))
    assert found.name == "cuda"
    assert vars(found)["rms_norm"] is op
    assert found.silu_mul is TORCH_OPS.silu_mul
    report = found.report
    assert (report.table, report.arch) == ("cuda", "sm_90")
    assert [(each.name, each.implementation) for each in report.groups] == [
        ("rms_norm", "cuda"),
        ("silu_mul", "torch"),
        ("others", "torch"),
    ]
    assert set(report.groups[2].ops) == set(OpTable.op_names()) - {"rms_norm", "silu_mul"}
    line = str(report)
    assert line.startswith("ops of cuda for sm_90: rms_norm cuda; silu_mul torch (ValueError: no); others torch")


def test_a_dense_block_without_its_kernel_takes_the_products_that_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which know how its weights are packed."""
    widths: list[Any] = []

    def linear(x: Tensor, packed: Any) -> Tensor:
        widths.append(packed)
        return x.new_ones(x.shape[0], packed)

    products = OpGroup("linear", (), {"linear": linear}, lambda _: None)
    monkeypatch.setattr(table, "GROUPS", (products, group("dense_block", ValueError("no"))))
    monkeypatch.setattr(table, "device_of", lambda _: fake_device())
    weights: Any = SimpleNamespace(out_proj=4, gate_up=12, down=4, next_in_proj=7, norm=None, next_norm=None, eps=1e-6)
    total, projected = cuda_ops.__wrapped__(torch.device("cuda")).dense_block(
        torch.ones(1, 4), torch.ones(1, 8), weights
    )
    assert widths == [4, 12, 4, 7]
    assert total.tolist() == [[3.0] * 4]
    assert projected.shape == (1, 7)


@pytest.mark.parametrize("groups", [(), (group("linear", ValueError("no")),)], ids=["none", "none that passes"])
def test_torch_alone(monkeypatch: pytest.MonkeyPatch, groups: tuple[OpGroup, ...]) -> None:
    monkeypatch.setattr(table, "GROUPS", groups)
    monkeypatch.setattr(table, "device_of", lambda _: fake_device())
    found = cuda_ops.__wrapped__(torch.device("cuda"))
    assert ops_of(found) == ops_of(TORCH_OPS)
    assert (found.name, found.report.table) == ("torch", "torch")
    assert all(each.implementation == "torch" for each in found.report.groups)


def ops_of(table: OpTable) -> dict[str, Any]:
    return {name: getattr(table, name) for name in OpTable.op_names()}


def test_a_device_without_code(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def no_device(_: torch.device) -> None:
        raise CudaError("no kernels for compute capability 7.5")

    monkeypatch.setattr(table, "device_of", no_device)
    found = cuda_ops.__wrapped__(torch.device("cuda"))
    assert ops_of(found) == ops_of(TORCH_OPS)
    assert [each.fallback_reason for each in found.report.groups] == ["no kernels for compute capability 7.5"]
    assert "torch serves every op: no kernels for compute capability 7.5" in caplog.text


def test_groups_serve_ops_of_the_table_once() -> None:
    served = [name for each in GROUPS for name in each.ops]
    assert set(served) <= set(OpTable.op_names())
    assert len(set(served)) == len(served)


@pytest.mark.parametrize("found", [[1.0, 2.1], [1.0, float("nan")]], ids=str)
def test_a_mismatch_has_its_size(found: list[float]) -> None:
    with pytest.raises(KernelMismatchError, match=r"^gemv differs from its reference by (4\.5e-02|nan), more than 1"):
        assert_close("gemv", torch.tensor(found), torch.tensor([1.0, 2.0]), 1e-2)
    assert_close("gemv", torch.tensor([1.0, 2.01]), torch.tensor([1.0, 2.0]), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_without_bindings_torch_serves(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.driver", None)
    found = ops_for(torch.device("cuda"), dtype)
    assert ops_of(found) == ops_of(TORCH_OPS)
    (report,) = found.report.groups
    assert report.fallback_reason.startswith("CUDA kernels need the package") == (dtype == torch.bfloat16)


@pytest.mark.parametrize("table", [CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
def test_every_op_is_reported_once(table: OpTable) -> None:
    reported = [op for each in table.report.groups for op in each.ops]
    assert sorted(reported) == sorted(OpTable.op_names())
