"""From declarations to machine code, and what of it fits which device."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.nvidia import compile as compiler
from kernels_numba.nvidia.compile import KernelBuildError, build, ptx_of, retargeted
from kernels_numba.nvidia.kernel import ARCHS, arch_of
from kernels_numba.nvidia.registry import KERNELS, STREAM_READ


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100a"),
        ((10, 3), None),
        ((12, 0), "sm_120a"),
        ((12, 1), None),
        ((7, 5), None),
    ],
    ids=str,
)
def test_the_code_that_a_device_runs(capability: tuple[int, int], arch: str | None) -> None:
    assert arch_of(capability) == arch


def test_names_are_unique() -> None:
    assert len({spec.name for spec in KERNELS}) == len(KERNELS)


def test_the_entry_is_named_and_bounded() -> None:
    ptx = ptx_of(STREAM_READ)
    assert ".visible .entry stream_read(" in ptx
    assert ".maxntid 512" in ptx
    assert ".minnctapersm 2" in ptx
    assert "NumbaEnv" not in ptx


@pytest.mark.parametrize("arch", ARCHS)
def test_instructions_that_a_target_lacks_are_dropped(arch: str) -> None:
    ptx = ".version 8.8\n.target sm_80\n.address_size 64\n\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n"
    found = retargeted(ptx, arch)
    assert f".target {arch}\n" in found
    assert found.count("griddepcontrol") == (2 if arch in ("sm_90", "sm_100a", "sm_120a") else 0)


def test_what_the_assembler_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "ptx_of", lambda spec: ".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n")
    with pytest.raises(KernelBuildError, match=r"^stream_read for sm_90: .*(?s:.)*syntax"):
        build(STREAM_READ, "sm_90")


def test_spills_are_counted() -> None:
    """A kernel of 16 rows within the registers that eight blocks leave it."""
    spec = next(spec for spec in KERNELS if spec.name == "gemv_nvfp4_m16_w16")
    _, used = build(replace(spec, min_blocks=4, name="spilling"), "sm_90")
    assert used.registers <= 32
    assert used.spill_bytes > 0
    assert used.stack_bytes > 0
