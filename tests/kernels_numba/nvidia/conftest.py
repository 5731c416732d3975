"""A device for kernels on a machine that has none."""

from __future__ import annotations

import random

import pytest
import torch

from kernels_numba.nvidia import gated_delta_ops, norms_ops
from tests.kernels_numba.nvidia.emulator import EmulatedDevice


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """What the ops of norms and of the gated delta rule launch runs in the emulator, blocks in any order."""
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    device = EmulatedDevice(random.Random(0))
    for module in (gated_delta_ops, norms_ops):
        monkeypatch.setattr(module, "device_of", lambda _: device)
    monkeypatch.setattr(torch, "empty", device.empty)
    return device
