"""The ops of a CPU on memory that nobody wrote, and on rows that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from tests.kernels_numba import poison
from tests.kernels_numba.poison import Place, Trial

Make = Callable[[Place], Trial]

CODECS = ("fp32", "bf16", "nvfp4")
TRIALS: dict[str, Make] = {
    **{
        f"linear {kind} x {rows}": partial(poison.linear, kind=kind, rows=rows)
        for kind in ("nvfp4", "fp8_row", "fp8_block", "q4", "q8", "bfloat16")
        for rows in (2, 9)
    },
    "rms_norm": partial(poison.rms_norm, rows=3),
    "add_rms_norm": partial(poison.add_rms_norm, rows=3),
    "silu_mul": partial(poison.silu_mul, rows=3),
    "moe_experts": partial(poison.moe_experts, rows=5),
    **{f"append_kv {codec}": partial(poison.append_kv, codec=codec, rows=5) for codec in CODECS},
    **{
        f"attention_decode {codec} x {rows}, {spoiled}": partial(
            poison.attention_decode, codec=codec, contexts=[70, 4, 128], rows=rows, spoiled=spoiled
        )
        for codec in CODECS
        for rows, spoiled in ((1, "query"), (1, "gate"), (4, "query"))
    },
    "attention_prefill": partial(poison.attention_prefill, codec="bf16", rows=20, context=150),
    "dense_block": partial(poison.dense_block, kind="nvfp4", rows=3),
    "gated_delta_round": partial(poison.gated_delta_round, lanes=3, rows=4, accepted=2),
    "gated_delta_decode": partial(poison.gated_delta_decode, lanes=3),
}
ALONE: dict[str, Make] = {"gated_delta_prefill": partial(poison.gated_delta_prefill, rows=70)}
"""Of one unit."""


@pytest.fixture
def place(ops: OpTable) -> Place:
    return Place(ops, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("make", [*TRIALS.values(), *ALONE.values()], ids=[*TRIALS, *ALONE])
def test_every_element_is_written(place: Place, make: Make) -> None:
    poison.check_every_element_is_written(make(place))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("make", TRIALS.values(), ids=TRIALS)
def test_rows_keep_to_themselves(place: Place, make: Make, value: float) -> None:
    """torch's attention on a CPU takes a query of NaN for one that sees nothing."""
    poison.check_rows_keep_to_themselves(make(place), 1, value, shows_nan=place.ops is CPU_OPS)


def test_memory_is_poisoned() -> None:
    with poison.memory(poisoned=True):
        assert torch.empty(1000).isnan().all()
        assert torch.ones(3).new_empty(1000).bfloat16().isnan().all()
        assert (torch.empty(1000, dtype=torch.uint8) == 255).all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_checks_find_faults() -> None:
    """An element that is not written, and a row that leaks into the others."""

    def unwritten(x: Tensor) -> list[Tensor]:
        out = torch.empty_like(x)
        out[:-1] = x[:-1]
        return [out]

    x = torch.ones(3, 4)
    with pytest.raises(AssertionError):
        poison.check_every_element_is_written(Trial(x, unwritten))
    with pytest.raises(AssertionError):
        poison.check_rows_keep_to_themselves(Trial(x, lambda x: [x + 0 * x.sum()]), 1, math.nan)
    with pytest.raises(AssertionError):
        poison.check_rows_keep_to_themselves(Trial(x, lambda x: [x.nan_to_num()]), 1, math.nan)
