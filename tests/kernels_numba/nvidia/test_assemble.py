"""Every kernel assembles for every target within its budget: no spills, no local memory, no more registers.

Kernels whose sources are those of the record (``python -m tools.assemble_kernels``) count as recorded, but for one of
each module, which is assembled here whatever the record says: the compilers may have changed.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("cuda.bindings.nvjitlink", reason="cuda-bindings is not installed")

from kernels_numba.nvidia.compile import Resources, build
from kernels_numba.nvidia.cubins import fingerprint
from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.registry import KERNELS
from tools.assemble_kernels import RECORD

FIRST_OF_MODULES = {spec.module: spec.name for spec in reversed(KERNELS)}


@cache
def recorded() -> dict[str, dict[str, Resources]]:
    """By kernel and target, of those whose sources have not changed."""
    record = json.loads(RECORD.read_text())
    current = {spec.name: fingerprint(spec) for spec in KERNELS}
    return {
        name: {arch: Resources(**used) for arch, used in entry["targets"].items()}
        for name, entry in record.items()
        if current.get(name) == entry["sources"] and name not in FIRST_OF_MODULES.values()
    }


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_resources(spec: KernelSpec) -> None:
    over = []
    for arch in spec.archs:
        used = recorded()[spec.name][arch] if spec.name in recorded() else built(spec, arch)
        if used.spill_bytes or used.stack_bytes or used.registers > spec.registers:
            over.append(f"{arch}: {used}")
    assert not over, f"{spec.name} may use {spec.registers} registers and no local memory"


def built(spec: KernelSpec, arch: str) -> Resources:
    cubin, used = build(spec, arch)
    assert cubin.startswith(b"\x7fELF")
    return used
