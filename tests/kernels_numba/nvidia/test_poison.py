"""Norms and gates in the emulator, on rows that are not finite; its memory is always poisoned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_numba.nvidia import norms_ops
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.kernels_numba import poison
from tests.kernels_numba.nvidia.emulator import EmulatedDevice
from tests.kernels_numba.poison import Place, Trial

OPS = (norms_ops.rms_norm, norms_ops.add_rms_norm, norms_ops.silu_mul)
TRIALS: dict[str, Callable[[Place], Trial]] = {
    "rms_norm": partial(poison.rms_norm, rows=3),
    "add_rms_norm": partial(poison.add_rms_norm, rows=3),
    "silu_mul": partial(poison.silu_mul, rows=3),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("make", TRIALS.values(), ids=TRIALS)
def test_rows_keep_to_themselves(emulated: EmulatedDevice, make: Callable[[Place], Trial], value: float) -> None:
    calls: list[str] = []

    def watched(op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(op.__name__)
            emulated.tensors += tensors_of(arguments)
            return op(*arguments)

        return call

    served: dict[str, Any] = {op.__name__: watched(op) for op in OPS}
    ops = replace(TORCH_OPS, **served)
    poison.check_rows_keep_to_themselves(make(Place(ops, torch.device("cpu"), torch.bfloat16)), 1, value)
    assert calls


def tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among the arguments of an op, those in its weights too."""
    found = [each for each in arguments if isinstance(each, Tensor)]
    nested = [tensors_of(tuple(vars(each).values())) for each in arguments if is_dataclass(each)]
    return [*found, *(tensor for each in nested for tensor in each)]
