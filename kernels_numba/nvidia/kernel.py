"""How a kernel is declared: what is compiled, for which targets, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120a")
"""Targets that kernels are assembled for."""
PDL_CAPABILITY = (9, 0)
"""First compute capability with programmatic dependent launch."""


@dataclass(frozen=True)
class KernelSpec:
    """One kernel. ``generator(*arguments)`` of module ``kernels_numba.nvidia.<module>`` returns the Python function.

    The module is named, not imported: a process whose kernels are all in the cache never imports numba.
    """

    name: str  # also the symbol in the cubin
    module: str
    generator: str
    arguments: tuple[int | bool | str, ...]
    signature: str  # a letter per parameter: l int64 (pointers), i int32, f float32
    threads: int
    min_blocks: int  # of a multiprocessor, which bounds the registers
    registers: int  # budget that no target may exceed
    archs: tuple[str, ...] = ARCHS

    def target_on(self, arch: str) -> str | None:
        """The target that is built for devices of ``arch``: itself, or its own variant with all that it can."""
        return next((target for target in (arch, f"{arch}a") if target in self.archs), None)


def compute_capability(arch: str) -> tuple[int, int]:
    """``(12, 0)`` of ``sm_120a``."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def arch_of(capability: tuple[int, int]) -> str | None:
    """The target whose machine code runs on a device of a compute capability, None if there is none.

    Machine code runs on later minor versions of its major version; that of ``a`` targets only on its own.
    """
    fitting = [
        arch
        for arch in ARCHS
        if (found := compute_capability(arch)) == capability
        or (not arch.endswith("a") and found[0] == capability[0] and found[1] <= capability[1])
    ]
    return fitting[-1] if fitting else None
