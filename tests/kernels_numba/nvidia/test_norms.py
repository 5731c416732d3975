"""Norms and gates as their kernels compute them, instruction by instruction on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba import reference
from kernels_numba.nvidia import gates, norms
from kernels_numba.nvidia.norms_kernels import SILU_THREADS, norm_shared_bytes
from tests.kernels_numba.inputs import Random
from tests.kernels_numba.nvidia.emulator import launch

ROUNDING = 2**-8  # of a result to bfloat16


@pytest.mark.parametrize(("rows", "width", "threads"), [(1, 8, 32), (2, 264, 32), (3, 520, 64)])
@pytest.mark.parametrize("add", [False, True], ids=["alone", "after an addition"])
def test_rms_norm(rows: int, width: int, threads: int, add: bool) -> None:
    random = Random(width)
    x, residual = (3 * random.normal(rows, width + 16)).bfloat16(), random.normal(rows, width + 8).bfloat16()
    weight, (total, out) = random.normal(width).float(), torch.full((2, rows, width), torch.nan).bfloat16()
    tensors = [x, residual, weight, total, out]
    launch(
        norms.source(add),
        (rows, 1, 1),
        threads,
        [*(t.data_ptr() for t in tensors), 2 * x.stride(0), 2 * residual.stride(0), width, np.float32(1e-6)],
        tensors,
        shared_bytes=norm_shared_bytes(width),
    )
    x, residual = x[:, :width], residual[:, :width]
    if add:
        assert torch.equal(total, residual + x)
        x = total
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    torch.testing.assert_close(out.double(), expected, atol=0, rtol=ROUNDING)


def test_silu_mul() -> None:
    rows, width = 2, 40
    gate_up = (5 * Random(0).normal(rows, 2 * width + 8)).bfloat16()
    gate_up[0, :4] = torch.tensor([-100, 100, -0.0, 1e30])
    out = torch.full((rows, width), torch.nan).bfloat16()
    arguments = [gate_up.data_ptr(), out.data_ptr(), 2 * gate_up.stride(0), width]
    launch(gates.source(), (1, rows, 1), SILU_THREADS, arguments, [gate_up, out])
    expected = reference.silu_mul(gate_up[:, : 2 * width].double())
    torch.testing.assert_close(out.double(), expected, atol=1e-40, rtol=ROUNDING)
