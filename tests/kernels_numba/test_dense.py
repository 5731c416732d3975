"""Products, norms, gates and experts against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_numba import reference
from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.matrices import DenseMatrix
from kernels_numba.ops import OpTable
from tests.kernels_numba.inputs import Random

ANY_SHAPE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
ROWS = st.integers(0, 37)
WIDTHS = st.integers(1, 210)


@ANY_SHAPE
@given(rows=ROWS, inputs=WIDTHS, outputs=WIDTHS)
def test_linear(ops: OpTable, rows: int, inputs: int, outputs: int) -> None:
    random = Random(rows * 211 + inputs)
    x, weight = random.normal(rows, inputs), random.normal(outputs, inputs)
    out = ops.linear(x.float(), ops.pack_linear(DenseMatrix(weight.float())))
    torch.testing.assert_close(out.double(), reference.linear(x, weight), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_weights_kept_in_bfloat16_give_the_same_bits(rows: int) -> None:
    random = Random(rows)
    x, weight = random.normal(rows, 101).float(), random.normal(90, 101).bfloat16().float()
    kept = CPU_OPS.pack_linear(DenseMatrix(weight))
    inexact = torch.cat([weight, torch.full((1, 101), 0.1)])  # one row more, which bfloat16 cannot hold
    wide = CPU_OPS.pack_linear(DenseMatrix(inexact))
    assert kept.size_bytes * 2 == wide.size_bytes  # both are two tiles of rows
    assert torch.equal(CPU_OPS.linear(x, kept), CPU_OPS.linear(x, wide)[:, :90])


@ANY_SHAPE
@given(rows=ROWS, width=WIDTHS)
def test_rms_norm(ops: OpTable, rows: int, width: int) -> None:
    random = Random(rows)
    x, weight = 3 * random.normal(rows, width), random.normal(width)
    out = ops.rms_norm(x.float(), weight.float(), 1e-6)
    torch.testing.assert_close(out.double(), reference.rms_norm(x, weight, 1e-6), atol=1e-5, rtol=1e-5)


def test_rms_norm_of_nothing_but_zeros(ops: OpTable) -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@ANY_SHAPE
@given(rows=ROWS, width=WIDTHS)
def test_add_rms_norm(ops: OpTable, rows: int, width: int) -> None:
    random = Random(rows)
    residual, x, weight = random.normal(rows, width), random.normal(rows, width), random.normal(width)
    before = residual.float()
    total, normed = ops.add_rms_norm(before, x.float(), weight.float(), 1e-6)
    assert torch.equal(before, residual.float())
    expected_total, expected = reference.add_rms_norm(residual, x, weight, 1e-6)
    torch.testing.assert_close(total.double(), expected_total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(normed.double(), expected, atol=1e-5, rtol=1e-5)


@ANY_SHAPE
@given(rows=ROWS, width=WIDTHS, scale=st.sampled_from([1.0, 30.0, 300.0]))
def test_silu_mul(ops: OpTable, rows: int, width: int, scale: float) -> None:
    gate_up = scale * Random(rows).normal(rows, 2 * width)
    out = ops.silu_mul(gate_up.float())
    torch.testing.assert_close(out.double(), reference.silu_mul(gate_up), atol=1e-6, rtol=2e-6)


@ANY_SHAPE
@given(rows=ROWS, experts=st.integers(1, 9), top_k=st.integers(1, 4), hidden=st.integers(1, 70))
def test_moe_experts(ops: OpTable, rows: int, experts: int, top_k: int, hidden: int) -> None:
    random, top_k = Random(rows), min(top_k, experts)
    x, routing, shared = random.normal(rows, hidden), random.normal(rows, experts + 1), random.normal(rows, hidden)
    gate_up, down = random.normal(experts, 2 * 24, hidden), random.normal(experts, hidden, 24)
    out = ops.moe_experts(
        x.float(),
        routing.float(),
        ops.pack_linear(DenseMatrix(gate_up.float())),
        ops.pack_linear(DenseMatrix(down.float())),
        top_k,
        shared.float(),
    )
    expected = reference.moe_experts(x, routing, gate_up, down, top_k, shared)
    torch.testing.assert_close(out.double(), expected, atol=3e-3, rtol=1e-5)


@pytest.mark.parametrize("rows", [2, 3, 4, 7, 8, 33])
def test_a_row_of_a_product_does_not_depend_on_the_others(rows: int) -> None:
    random = Random(rows)
    x, packed = random.normal(rows, 101).float(), CPU_OPS.pack_linear(DenseMatrix(random.normal(90, 101).float()))
    together = CPU_OPS.linear(x, packed)
    assert torch.equal(together, torch.cat([CPU_OPS.linear(x[row : row + 1], packed) for row in range(rows)]))
