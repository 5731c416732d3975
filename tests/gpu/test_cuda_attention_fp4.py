"""Scores of FP4 tensor cores on a GPU that has them. No such device was at hand when this was written."""

from __future__ import annotations

import pytest
import torch

from kernels_numba.nvidia.attention_fp4_kernels import ARCHS
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.table import cuda_ops

pytestmark = pytest.mark.gpu


def test_the_variant_serves(device: torch.device) -> None:
    """Its self-test has every size of it."""
    if device_of(device).arch not in ARCHS:
        pytest.skip(f"the device is not {' or '.join(ARCHS)}")
    (report,) = (group for group in cuda_ops(device).report.groups if group.name == "attention_decode")
    (variant,) = report.variants
    assert variant.serves, variant.fallback_reason
