"""Norms and gates as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import pytest
import torch

from kernels_numba import reference
from kernels_numba.nvidia import norms_ops
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.nvidia.emulator import EmulatedDevice

ROUNDING = 2**-8  # of a result to bfloat16


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 264), (1, 2056), (1, 5160)])
@pytest.mark.parametrize("add", [False, True], ids=["alone", "after an addition"])
def test_rms_norm(emulated: EmulatedDevice, rows: int, width: int, add: bool) -> None:
    random = Random(width)
    x, residual = (3 * random.normal(rows, width + 16)).bfloat16(), random.normal(rows, width + 8).bfloat16()
    weight = random.normal(width).float()
    emulated.tensors += [x, residual, weight]
    x, residual = x[:, 8 : width + 8], residual[:, :width]
    if add:
        total, out = norms_ops.add_rms_norm(residual, x, weight, 1e-6)
        assert torch.equal(total, residual + x)
        x = total
    else:
        out = norms_ops.rms_norm(x, weight, 1e-6)
    assert len(emulated.launched) == 1
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(out.double(), expected, atol=0, rtol=ROUNDING)


def test_silu_mul(emulated: EmulatedDevice) -> None:
    rows, width = 2, 2056
    gate_up = (5 * Random(0).normal(rows, 2 * width + 8)).bfloat16()
    gate_up[0, :4] = torch.tensor([-100, 100, -0.0, 1e30])
    emulated.tensors.append(gate_up)
    out = norms_ops.silu_mul(gate_up[:, : 2 * width])
    assert emulated.launched == ["silu_mul"]
    expected = reference.silu_mul(gate_up[:, : 2 * width].double())
    torch.testing.assert_close(out.double(), expected, atol=1e-40, rtol=ROUNDING)


@pytest.mark.parametrize("width", [12, 1024])
def test_torch_takes_what_the_kernels_do_not(emulated: EmulatedDevice, width: int) -> None:
    x, weight = Random(0).normal(3, width + 4).bfloat16()[:, 4:], torch.ones(width)
    emulated.tensors += [x, weight]
    assert norms_ops.rms_norm(x, weight, 1e-6).isfinite().all()
    assert norms_ops.silu_mul(x).isfinite().all()
    assert not emulated.launched
