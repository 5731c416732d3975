"""Ops are only served by kernels that agree with the reference, on this device, at this start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels_numba.nvidia.launch import Device
from kernels_numba.report import Check, GroupReport, VariantReport

_log = logging.getLogger(__name__)


class KernelMismatchError(Exception):
    """A kernel whose results differ from the reference's."""


@dataclass(frozen=True)
class Variant:
    """Kernels for some devices, which serve ops of a group instead of its own where they pass a check of theirs."""

    name: str
    archs: tuple[str, ...]
    kernels: tuple[str, ...]
    ops: Mapping[str, Callable[..., Any]]  # by field of OpTable
    check: Callable[[torch.device], None]  # as of a group


@dataclass(frozen=True)
class OpGroup:
    """Ops of the table that one set of kernels serves, and how to find out whether it does."""

    name: str
    kernels: tuple[str, ...]
    ops: Mapping[str, Callable[..., Any]]  # by field of OpTable
    check: Callable[[torch.device], None]  # small inputs against the reference; raises KernelMismatchError
    variants: tuple[Variant, ...] = ()

    def served(self, report: GroupReport) -> dict[str, Callable[..., Any]]:
        """The ops as the report, of a group whose own kernels serve, has found them."""
        passed = {variant.name for variant in report.variants if variant.serves}
        ops = dict(self.ops)
        for variant in self.variants:
            if variant.name in passed:
                ops.update(variant.ops)
        return ops


_checks: list[Check] = []
"""Of the group under test."""


def assert_close(kernel: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """KernelMismatchError unless the norm of the difference is within ``tolerance`` of that of what is expected."""
    expected = expected.double().cpu()
    difference = float((found.double().cpu() - expected).norm() / expected.norm())
    if not difference <= tolerance:
        raise KernelMismatchError(f"{kernel} differs from its reference by {difference:.1e}, more than {tolerance:.1e}")
    _checks.append(Check(kernel, difference, tolerance))


def run_self_tests(groups: tuple[OpGroup, ...], device: Device) -> tuple[GroupReport, ...]:
    """Which kernels load and agree with the reference; the journal names the others, with the reason."""
    return tuple(_self_test(group, device) for group in groups)


def _self_test(group: OpGroup, device: Device) -> GroupReport:
    _checks.clear()
    started_s = time.monotonic()
    try:
        device.load(group.kernels)
        group.check(torch.device("cuda", device.index))
    except Exception as error:  # torch serves what a kernel cannot, for whatever reason
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _log.warning("torch serves %s instead of CUDA kernels: %s", ", ".join(group.ops), reason)
        return GroupReport(group.name, tuple(group.ops), "torch", fallback_reason=reason)
    meant = [variant for variant in group.variants if device.arch in variant.archs]
    variants = tuple(_test_variant(variant, device) for variant in meant)
    worst = max(_checks, key=lambda check: check.error / check.limit, default=None)
    elapsed_ms = (time.monotonic() - started_s) * 1e3
    return GroupReport(group.name, tuple(group.ops), "cuda", len(_checks), worst, elapsed_ms, variants=variants)


def _test_variant(variant: Variant, device: Device) -> VariantReport:
    passed = len(_checks)
    try:
        device.load(variant.kernels)
        variant.check(torch.device("cuda", device.index))
    except Exception as error:  # the ordinary kernels serve, for whatever reason
        del _checks[passed:]
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _log.warning("ordinary CUDA kernels serve %s instead of %s: %s", ", ".join(variant.ops), variant.name, reason)
        return VariantReport(variant.name, serves=False, fallback_reason=reason)
    return VariantReport(variant.name, serves=True)
