"""Kernels of some devices that serve instead of ordinary ones if they pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels_numba.nvidia import table
from kernels_numba.nvidia.launch import CudaError
from kernels_numba.nvidia.self_test import KernelMismatchError, OpGroup, Variant, assert_close, run_self_tests
from kernels_numba.nvidia.table import cuda_ops
from kernels_numba.report import VariantReport


def ordinary(*_: Any) -> None:
    """Stands for an op."""


def special(*_: Any) -> None:
    """Stands for its variant."""


def device(arch: str, unloadable: str = "") -> Any:
    def load(names: tuple[str, ...]) -> None:
        if unloadable in names:
            raise CudaError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")

    return SimpleNamespace(index=0, load=load, arch=arch)


def group(found: float) -> OpGroup:
    """Of an op whose variant computes ``found`` for 1, within 0.1."""

    def check(_: torch.device) -> None:
        assert_close("attention", torch.tensor([1.01]), torch.tensor([1.0]), 0.1)

    def check_variant(_: torch.device) -> None:
        assert_close("attention_fp4 of 1 row", torch.tensor([1.02]), torch.tensor([1.0]), 0.1)
        assert_close("attention_fp4 of 4 rows", torch.tensor([found]), torch.tensor([1.0]), 0.1)

    variant = Variant("attention_fp4", ("sm_120a",), ("fp4_kernel",), {"attention_decode": special}, check_variant)
    return OpGroup("attention_decode", ("kernel",), {"attention_decode": ordinary}, check, (variant,))


def test_a_variant_serves_where_it_passes() -> None:
    (report,) = run_self_tests((group(1.05),), device("sm_120a"))
    assert report.variants == (VariantReport("attention_fp4", serves=True),)
    assert group(1.05).served(report) == {"attention_decode": special}
    assert report.checks == 3
    assert report.worst is not None
    assert report.worst.kernel == "attention_fp4 of 4 rows"
    assert str(report).startswith("attention_decode cuda with attention_fp4 (3 checks")


@pytest.mark.parametrize(
    ("found", "unloadable", "reason"),
    [
        (1.2, "", "KernelMismatchError: attention_fp4 of 4 rows differs from its reference by 2.0e-01"),
        (1.05, "fp4_kernel", "CudaError: cuModuleLoadData"),
    ],
    ids=["differs", "does not load"],
)
def test_the_ordinary_kernels_serve_where_it_fails(
    found: float, unloadable: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (report,) = run_self_tests((group(found),), device("sm_120a", unloadable))
    (variant,) = report.variants
    assert not variant.serves
    assert variant.fallback_reason.startswith(reason)
    assert group(found).served(report) == {"attention_decode": ordinary}
    assert (report.implementation, report.checks, report.fallback_reason) == ("cuda", 1, "")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"ordinary CUDA kernels serve attention_decode instead of attention_fp4: {reason}" in caplog.text
    assert str(report).startswith("attention_decode cuda without attention_fp4 (1 checks")


def test_other_devices_do_not_hear_of_it(caplog: pytest.LogCaptureFixture) -> None:
    (report,) = run_self_tests((group(1.2),), device("sm_90", "fp4_kernel"))
    assert (report.variants, report.checks, caplog.text) == ((), 1, "")
    assert group(1.2).served(report) == {"attention_decode": ordinary}


@pytest.mark.parametrize(("found", "op"), [(1.05, special), (1.2, ordinary)], ids=["passes", "fails"])
def test_the_table_has_what_serves(found: float, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "GROUPS", (group(found),))
    monkeypatch.setattr(table, "device_of", lambda _: device("sm_120a"))
    served = cuda_ops.__wrapped__(torch.device("cuda"))
    assert served.attention_decode is op
    assert [each.serves for each in served.report.groups[0].variants] == [op is special]


def test_a_group_that_fails_has_no_variant() -> None:
    def check(_: torch.device) -> None:
        raise KernelMismatchError("attention")

    failing = OpGroup("attention_decode", (), {"attention_decode": ordinary}, check, group(1.0).variants)
    (report,) = run_self_tests((failing,), device("sm_120a"))
    assert (report.implementation, report.variants) == ("torch", ())
