"""The CUDA op table: torch's, with every op replaced that has kernels which pass their self-test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from kernels_numba.nvidia import (
    append_ops,
    attention_decode_ops,
    attention_prefill_ops,
    gated_delta_ops,
    linear_ops,
    moe_ops,
    norms_ops,
)
from kernels_numba.nvidia.launch import CudaError, device_of
from kernels_numba.nvidia.self_test import OpGroup, passing
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS

GROUPS: tuple[OpGroup, ...] = (
    linear_ops.GROUP,
    norms_ops.GROUP,
    append_ops.GROUP,
    attention_decode_ops.GROUP,
    attention_prefill_ops.GROUP,
    gated_delta_ops.GROUP,
    moe_ops.GROUP,
)
"""A family of ops adds its group here."""

_log = logging.getLogger(__name__)


@lru_cache
def cuda_ops(device: torch.device) -> OpTable:
    """The ops that serve bfloat16 activations on ``device``; made, with the self-test, once per process."""
    try:
        found = device_of(device)
    except CudaError as error:
        _log.warning("torch serves every op: %s", error)
        return TORCH_OPS
    groups = passing(GROUPS, found)
    if not groups:
        return TORCH_OPS
    ops: dict[str, Callable[..., Any]] = {}
    for group in groups:
        ops.update(group.ops)
    _log.info("CUDA kernels for %s passed their self-test and serve %s", found.label, ", ".join(ops))
    return replace(TORCH_OPS, name="cuda", **ops)
