"""Which ops kernels serve, and what the journal says of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels_numba.nvidia import table
from kernels_numba.nvidia.launch import CudaError
from kernels_numba.nvidia.self_test import KernelMismatchError, OpGroup, assert_close, passing
from kernels_numba.nvidia.table import GROUPS, cuda_ops
from kernels_numba.ops import OpTable
from kernels_numba.selection import ops_for
from kernels_numba.torch_ops.table import TORCH_OPS


def op(*_: Any) -> None:
    """Stands for one."""


def group(name: str, error: Exception | None = None) -> OpGroup:
    def check(device: torch.device) -> None:
        if error:
            raise error

    return OpGroup(name, kernels=(f"{name}_kernel",), ops={name: op}, check=check)


def fake_device(unloadable: str = "") -> Any:
    def load(names: tuple[str, ...]) -> None:
        if unloadable in names:
            raise CudaError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")

    return SimpleNamespace(index=0, load=load, label="a card (sm_90)")


def test_a_group_that_fails_is_named_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    groups = group("rms_norm"), group("silu_mul", KernelMismatchError("silu differs\nat 3")), group("linear")
    assert passing(groups, fake_device("linear_kernel")) == groups[:1]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "torch serves silu_mul instead of CUDA kernels: KernelMismatchError: silu differs" in caplog.text
    assert "torch serves linear instead of CUDA kernels: CudaError: cuModuleLoadData" in caplog.text


def test_a_table_has_the_ops_that_pass(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(table, "GROUPS", (group("rms_norm"), group("silu_mul", ValueError("no"))))
    monkeypatch.setattr(table, "device_of", lambda _: fake_device())
    found = cuda_ops.__wrapped__(torch.device("cuda"))
    assert found.name == "cuda"
    assert vars(found)["rms_norm"] is op
    assert found.silu_mul is TORCH_OPS.silu_mul
    assert "CUDA kernels for a card (sm_90) passed their self-test and serve rms_norm" in caplog.text


@pytest.mark.parametrize("groups", [(), (group("linear", ValueError("no")),)], ids=["none", "none that passes"])
def test_torch_alone(monkeypatch: pytest.MonkeyPatch, groups: tuple[OpGroup, ...]) -> None:
    monkeypatch.setattr(table, "GROUPS", groups)
    monkeypatch.setattr(table, "device_of", lambda _: fake_device())
    assert cuda_ops.__wrapped__(torch.device("cuda")) is TORCH_OPS


def test_a_device_without_code(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def no_device(_: torch.device) -> None:
        raise CudaError("no kernels for compute capability 7.5")

    monkeypatch.setattr(table, "device_of", no_device)
    assert cuda_ops.__wrapped__(torch.device("cuda")) is TORCH_OPS
    assert "torch serves every op: no kernels for compute capability 7.5" in caplog.text


def test_groups_serve_ops_of_the_table_once() -> None:
    served = [name for each in GROUPS for name in each.ops]
    assert set(served) <= set(OpTable.__dataclass_fields__) - {"name"}
    assert len(set(served)) == len(served)


@pytest.mark.parametrize("found", [[1.0, 2.1], [1.0, float("nan")]], ids=str)
def test_a_mismatch_has_its_size(found: list[float]) -> None:
    with pytest.raises(KernelMismatchError, match=r"^gemv differs from its reference by (4\.5e-02|nan), more than 1"):
        assert_close("gemv", torch.tensor(found), torch.tensor([1.0, 2.0]), 1e-2)
    assert_close("gemv", torch.tensor([1.0, 2.01]), torch.tensor([1.0, 2.0]), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_without_bindings_torch_serves(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.driver", None)
    assert ops_for(torch.device("cuda"), dtype) is TORCH_OPS
