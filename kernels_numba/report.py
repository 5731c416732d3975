"""Who serves which ops, and what its self-test found: for the journal and ``/stats``. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One comparison of a kernel with its reference."""

    kernel: str
    error: float  # norm of the deviation, as a share of that of the reference
    limit: float


@dataclass(frozen=True)
class VariantReport:
    """Kernels for some devices only, which were to serve instead of a group's ordinary ones."""

    name: str
    serves: bool
    fallback_reason: str = ""  # why it does not


@dataclass(frozen=True)
class GroupReport:
    """Ops that one set of kernels serves, or was to serve."""

    name: str
    ops: tuple[str, ...]  # by field of OpTable
    implementation: str  # "cuda", "torch" or "cpu"
    checks: int = 0  # comparisons of the self-test
    worst: Check | None = None  # the one closest to its limit
    self_test_ms: float = 0.0  # loading, and building what no cache had, included
    fallback_reason: str = ""  # why it is not the kernels, with the name of what failed
    variants: tuple[VariantReport, ...] = ()  # those meant for this device

    def __str__(self) -> str:
        serves = f"{self.name} {self.implementation}"
        for variant in self.variants:
            serves += f" with {variant.name}" if variant.serves else f" without {variant.name}"
        if self.fallback_reason:
            return f"{serves} ({self.fallback_reason})"
        if self.worst is None:
            return serves
        worst = f"worst {self.worst.kernel} {self.worst.error:.1e} of {self.worst.limit:.1e}"
        return f"{serves} ({self.checks} checks, {worst}, {self.self_test_ms:.0f} ms)"


@dataclass(frozen=True)
class OpsReport:
    """The op table of an engine."""

    table: str
    arch: str = ""  # of the kernels
    groups: tuple[GroupReport, ...] = ()

    def __str__(self) -> str:
        """One line of the journal."""
        arch = f" for {self.arch}" if self.arch else ""
        return f"ops of {self.table}{arch}: {'; '.join(map(str, self.groups))}"
