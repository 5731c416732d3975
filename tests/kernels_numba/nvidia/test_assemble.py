"""Every kernel assembles for every target within its budget: no spills, no local memory, no more registers."""

from __future__ import annotations

import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("cuda.bindings.nvjitlink", reason="cuda-bindings is not installed")

from kernels_numba.nvidia.compile import build
from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.registry import KERNELS


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_resources(spec: KernelSpec) -> None:
    over = []
    for arch in spec.archs:
        cubin, used = build(spec, arch)
        assert cubin.startswith(b"\x7fELF")
        if used.spill_bytes or used.stack_bytes or used.registers > spec.registers:
            over.append(f"{arch}: {used}")
    assert not over, f"{spec.name} may use {spec.registers} registers and no local memory"
