"""The ops that serve on a CUDA device, on memory that nobody wrote and on rows that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.selection import ops_for
from tests.kernels_numba import poison
from tests.kernels_numba.poison import Place, Trial

pytestmark = pytest.mark.gpu

Make = Callable[[Place], Trial]

CODECS = [name for name in KV_CODECS if name != "fp32"]
TRIALS: dict[str, Make] = {
    **{
        f"linear {kind} x {rows}": partial(poison.linear, kind=kind, rows=rows)
        for kind in ("nvfp4", "fp8_row", "fp8_block", "q4", "q5", "q6", "q8", "bfloat16")
        for rows in (2, 7, 16, 40, 130)
    },
    **{f"rms_norm x {rows}": partial(poison.rms_norm, rows=rows) for rows in (2, 40)},
    **{f"add_rms_norm x {rows}": partial(poison.add_rms_norm, rows=rows) for rows in (2, 40)},
    **{f"silu_mul x {rows}": partial(poison.silu_mul, rows=rows) for rows in (2, 40)},
    **{f"moe_experts x {rows}": partial(poison.moe_experts, rows=rows) for rows in (2, 40)},
    **{f"append_kv {codec}": partial(poison.append_kv, codec=codec, rows=5) for codec in CODECS},
    **{
        f"attention_decode {codec} x {rows}, {spoiled}": partial(
            poison.attention_decode, codec=codec, contexts=[1500, 16, 128, 700], rows=rows, spoiled=spoiled
        )
        for codec in CODECS
        for rows, spoiled in ((1, "query"), (1, "gate"), (2, "query"), (4, "query"), (8, "query"), (16, "query"))
    },
    **{
        f"attention_prefill {codec}": partial(poison.attention_prefill, codec=codec, rows=150, context=400)
        for codec in CODECS
    },
    **{
        f"dense_block {kind} x {rows}": partial(poison.dense_block, kind=kind, rows=rows)
        for kind in ("nvfp4", "q8")
        for rows in (2, 4, 8, 16, 40)
    },
    **{
        f"gated_delta_round x {lanes} of {rows}, {accepted} accepted": partial(
            poison.gated_delta_round, lanes=lanes, rows=rows, accepted=accepted
        )
        for lanes, rows, accepted in ((2, 2, 1), (3, 4, 0), (6, 8, 8), (2, 16, 5))
    },
    **{f"gated_delta_decode x {lanes}": partial(poison.gated_delta_decode, lanes=lanes) for lanes in (2, 6)},
}
ALONE: dict[str, Make] = {
    f"gated_delta_prefill x {rows}": partial(poison.gated_delta_prefill, rows=rows) for rows in (9, 70, 300)
}
"""Of one unit."""


@pytest.fixture(scope="module")
def place(device: torch.device) -> Place:
    return Place(ops_for(device, torch.bfloat16), device, torch.bfloat16)


@pytest.mark.parametrize("make", [*TRIALS.values(), *ALONE.values()], ids=[*TRIALS, *ALONE])
def test_every_element_is_written(place: Place, make: Make) -> None:
    poison.check_every_element_is_written(make(place))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("make", TRIALS.values(), ids=TRIALS)
def test_rows_keep_to_themselves(place: Place, make: Make, value: float) -> None:
    poison.check_rows_keep_to_themselves(make(place), 1, value)
