"""The op tables under test."""

from __future__ import annotations

import pytest

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS


@pytest.fixture(params=[CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
def ops(request: pytest.FixtureRequest) -> OpTable:
    """Every implementation that runs in float32 on a CPU."""
    table: OpTable = request.param
    return table
