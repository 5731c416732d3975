"""The CUDA op table: torch's, with every op replaced that has kernels which pass their self-test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from kernels_numba.dense_block import composed_dense_block
from kernels_numba.nvidia import (
    append_ops,
    attention_decode_ops,
    attention_prefill_ops,
    gated_delta_ops,
    linear_block_ops,
    linear_ops,
    moe_ops,
    norms_ops,
)
from kernels_numba.nvidia.launch import CudaError, device_of
from kernels_numba.nvidia.linear_fp4_ops import with_fp4_prefill
from kernels_numba.nvidia.self_test import OpGroup, run_self_tests
from kernels_numba.ops import OpTable
from kernels_numba.report import GroupReport, OpsReport
from kernels_numba.torch_ops.table import TORCH_OPS, torch_ops_because

GROUPS: tuple[OpGroup, ...] = (
    linear_ops.GROUP,
    norms_ops.GROUP,
    linear_block_ops.GROUP,
    append_ops.GROUP,
    attention_decode_ops.GROUP,
    attention_prefill_ops.GROUP,
    gated_delta_ops.GROUP,
    moe_ops.GROUP,
)
"""A family of ops adds its group here."""

_log = logging.getLogger(__name__)


@lru_cache
def cuda_ops(device: torch.device, fp4_prefill: bool = False) -> OpTable:
    """The ops that serve bfloat16 activations on ``device``; made, with the self-test, once per process.

    ``fp4_prefill``: see ``kernels_numba.selection.ops_for``.
    """
    if fp4_prefill:
        table = cuda_ops(device)
        return with_fp4_prefill(table, device_of(device)) if table.name == "cuda" else table
    try:
        found = device_of(device)
    except CudaError as error:
        _log.warning("torch serves every op: %s", error)
        return torch_ops_because(str(error))
    reports = run_self_tests(GROUPS, found)
    ops: dict[str, Callable[..., Any]] = {}
    for group, report in zip(GROUPS, reports, strict=True):
        if report.implementation == "cuda":
            ops.update(group.served(report))
    known = {op for group in GROUPS for op in group.ops}
    others = GroupReport("others", tuple(op for op in OpTable.op_names() if op not in known), "torch")
    name = "cuda" if ops else "torch"
    table = replace(TORCH_OPS, name=name, report=OpsReport(name, found.arch, (*reports, others)), **ops)
    if "dense_block" in ops or "linear" not in ops:
        return table
    # torch's would not know weights that are packed for the kernels of its products
    return replace(table, dense_block=composed_dense_block(table.linear, table.add_rms_norm, table.silu_mul))
