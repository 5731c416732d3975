"""When products of many rows are FP4, and what is said where they are not. The products themselves need the card."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from kernels_numba.nvidia import linear_fp4_ops
from kernels_numba.nvidia.launch import CudaError
from kernels_numba.nvidia.linear import STREAMED_ROWS, StreamSegment, stream_segment
from kernels_numba.nvidia.linear_formats import FP8, NVFP4
from kernels_numba.nvidia.linear_fp4_ops import can_multiply, fp4_product, with_fp4_prefill
from kernels_numba.ops import OpTable
from kernels_numba.selection import ops_for
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.kernels_numba.weights import RandomMatrices

WARNING = "engine.prefill_activations: bf16 instead of nvfp4, products of prompts are not FP4: "


class FakeDevice:
    """A card of a target, whose kernels may not load."""

    index = 0

    def __init__(self, arch: str, fault: Exception | None = None) -> None:
        self.arch, self.label, self._fault = arch, f"a card ({arch})", fault

    def load(self, _names: object) -> None:
        if self._fault:
            raise self._fault


def chosen(device: Any, monkeypatch: pytest.MonkeyPatch) -> OpTable:
    monkeypatch.setattr(linear_fp4_ops, "check", lambda _device: None)
    return with_fp4_prefill(TORCH_OPS, device)


def test_a_card_with_fp4_products(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    table = chosen(FakeDevice("sm_120a"), monkeypatch)
    assert table.linear is linear_fp4_ops.linear
    assert table.report.groups[-1].implementation == "cuda"
    assert not caplog.records


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (FakeDevice("sm_90"), "a card (sm_90) has no block-scaled FP4 tensor cores (sm_100a and sm_120a have)"),
        (FakeDevice("sm_120a", CudaError("no room\nfor it")), "CudaError: no room"),
    ],
    ids=["another card", "a kernel does not load"],
)
def test_without(device: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    table = chosen(device, monkeypatch)
    assert table.linear is TORCH_OPS.linear
    assert table.dense_block is TORCH_OPS.dense_block
    assert (table.report.groups[-1].implementation, table.report.groups[-1].fallback_reason) == ("torch", reason)
    assert [record.message for record in caplog.records] == [WARNING + reason]


def test_a_torch_without_scaled_mm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.functional, "scaled_mm")
    assert (
        "torch.nn.functional.scaled_mm" in chosen(FakeDevice("sm_120a"), monkeypatch).report.groups[-1].fallback_reason
    )


def test_on_the_cpu_it_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ops_for(torch.device("cpu"), torch.float32, fp4_prefill=True)
        ops_for(torch.device("cpu"), torch.float32)
    assert [record.message for record in caplog.records] == [WARNING + "the CPU has no FP4 products"]


def segment(kind: str, multiplier: Tensor) -> StreamSegment:
    matrices = RandomMatrices()
    matrix: Any = matrices.nvfp4(48, 256) if kind == "nvfp4" else matrices.fp8_row(48, 256)
    matrix.multiplier[:] = multiplier
    return stream_segment(matrix, NVFP4 if kind == "nvfp4" else FP8, 1, 1)


def test_which_weights() -> None:
    two_factors = torch.tensor([2.0, 3.0]).repeat_interleave(torch.tensor([16, 32]))
    assert can_multiply(segment("nvfp4", two_factors))
    assert not can_multiply(segment("nvfp4", torch.arange(48.0) + 1))
    inside_a_tile = torch.tensor([2.0, 3.0]).repeat_interleave(torch.tensor([8, 40]))
    assert not can_multiply(segment("nvfp4", inside_a_tile))
    assert not can_multiply(segment("fp8", torch.ones(48)))


def test_each_run_of_a_factor_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands as the kernels would make them, named by their rows; the library's product replaced by its record."""
    seen = []

    def operand(_segment: StreamSegment, begin: int, end: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([begin, end]), torch.zeros(1)

    def scaled_mm(x: Tensor, _s: Tensor, down: Tensor, w: Tensor, _t: Tensor, factor: float) -> Tensor:
        seen.append((*w.tolist(), factor))
        return (x[:, :1] * float(down)).expand(-1, int(w[1] - w[0]))

    monkeypatch.setattr(linear_fp4_ops, "activations_operand", lambda x: (x, x, torch.tensor([0.5])))
    monkeypatch.setattr(linear_fp4_ops, "weights_operand", operand)
    monkeypatch.setattr(linear_fp4_ops, "_scaled_mm", scaled_mm)
    out = torch.full((3, 48), torch.nan)
    factors = torch.tensor([2.0, 3.0]).repeat_interleave(torch.tensor([16, 32]))
    fp4_product(torch.full((3, 256), 8.0), segment("nvfp4", factors), out)
    assert seen == [(0, 16, 2.0), (16, 48, 3.0)]
    assert torch.equal(out, torch.full((3, 48), 4.0))


def test_few_rows_keep_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_fp4_ops, "check", lambda _device: None)
    called = []

    def block(residual: Tensor, mixed: Tensor, _weights: Any) -> tuple[Tensor, Tensor]:
        called.append(residual.shape[0])
        return residual, mixed

    monkeypatch.setattr(linear_fp4_ops, "composed_dense_block", lambda *_ops: lambda *rows: (-rows[0], rows[1]))
    table = with_fp4_prefill(replace(TORCH_OPS, dense_block=block), FakeDevice("sm_100a"))  # type: ignore[arg-type]
    few, many = torch.ones(STREAMED_ROWS, 1), torch.ones(STREAMED_ROWS + 1, 1)
    assert table.dense_block(few, few, None)[0] is few  # type: ignore[arg-type]
    assert torch.equal(table.dense_block(many, many, None)[0], -many)  # type: ignore[arg-type]
    assert called == [STREAMED_ROWS]
