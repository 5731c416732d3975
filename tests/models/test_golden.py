"""Published golden values of the family's arithmetic, from weights that need no random number generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.models import Qwen3_5Text
from tests.support.checkpoints import MOE, TEXT, build_transformers_model, fill_deterministic, hash_uniform
from tests.support.models import SavedModel, prompt_tokens, transformers_logits
from tests.support.sequences import Runner


@dataclass(frozen=True)
class Golden:
    config: dict[str, Any]
    first_logits: list[float]  # position 0
    first_argmax: int
    last_logits: list[float]  # position 19
    last_absolute_sum: float
    greedy: list[int]


GOLDEN = {
    "dense": Golden(
        TEXT,
        [0.37681, 0.51574, 1.39808],
        503,
        [0.08809, -0.39713, 0.52799, 1.38351, -0.29875, -0.31327],
        338.5719,
        [481, 38, 464, 171, 282, 236, 117, 103],
    ),
    "moe": Golden(
        MOE,
        [0.68248, -1.96985, -0.30215],
        159,
        [0.08372, 0.53570, 0.30901, 1.30331, -1.37193, -1.53694],
        362.6235,
        [303, 351, 398, 21, 107, 77, 476, 156],
    ),
}


def test_the_fill_starts_as_published() -> None:
    expected = [0.001465159934, -0.640767340549, -0.050810722169, -0.124606136233]
    np.testing.assert_allclose(hash_uniform(0, 4), expected, atol=5e-13)


@pytest.fixture(scope="module", params=list(GOLDEN))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Golden, SavedModel]:
    case = GOLDEN[request.param]
    model = build_transformers_model(case.config)
    fill_deterministic(model)
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory)
    return case, SavedModel(directory, model)


@pytest.fixture(params=[CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
def ours(request: pytest.FixtureRequest, golden: tuple[Golden, SavedModel]) -> Qwen3_5Text:
    return golden[1].load(request.param, torch.device("cpu"))


def test_logits(golden: tuple[Golden, SavedModel], ours: Qwen3_5Text) -> None:
    case, saved = golden
    logits = Runner.create(ours, 1, 20).step({0: prompt_tokens(20)}, all_logits=True)
    np.testing.assert_allclose(logits[0, :3], case.first_logits, atol=1e-4)
    assert int(logits[0].argmax()) == case.first_argmax
    np.testing.assert_allclose(logits[19, :6], case.last_logits, atol=1e-4)
    np.testing.assert_allclose(logits[19].abs().sum(), case.last_absolute_sum, atol=0.01)
    expected = transformers_logits(saved.transformers_model, prompt_tokens(20))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_greedy_tokens(golden: tuple[Golden, SavedModel], ours: Qwen3_5Text) -> None:
    case, _ = golden
    assert Runner.create(ours, 1, 40).greedy(0, prompt_tokens(20), 8) == case.greedy
