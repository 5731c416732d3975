"""Chunks, batches and places in the caches make no difference."""

from __future__ import annotations

import pytest
import torch

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS
from tests.support.batching import PROMPTS, alone, chunked, in_rounds
from tests.support.models import SavedModel, prompt_tokens
from tests.support.sequences import Runner

CPU = torch.device("cpu")
TOKENS = 150
TOLERANCE = 5e-4
"""Of logits in float32 between two orders of summation, through layers that normalise short vectors."""


def size_id(sizes: list[int]) -> str:
    return "+".join(map(str, sizes[:6])) + ("+..." if len(sizes) > 6 else "")


@pytest.mark.parametrize(
    "sizes", [[149, 1], [1, 149], [64, 64, 22], [63, 65, 22], [2, 3, 1, 1, 70, 73], [1] * TOKENS], ids=size_id
)
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16"])
def test_chunks_give_the_same_bits_on_cpu(saved: SavedModel, sizes: list[int], kv_dtype: str) -> None:
    model, tokens = saved.load(CPU_OPS, CPU), prompt_tokens(TOKENS)
    whole = Runner.create(model, 1, TOKENS, kv_dtype).step({0: tokens}, all_logits=True)
    assert torch.equal(chunked(Runner.create(model, 1, TOKENS, kv_dtype), tokens, sizes), whole)


@pytest.mark.parametrize("sizes", [[149, 1], [1, 2, 147], [64, 64, 22], [63, 65, 22], [30] * 5], ids=size_id)
def test_chunks_agree_in_torch(saved: SavedModel, sizes: list[int]) -> None:
    model, tokens = saved.load(TORCH_OPS, CPU), prompt_tokens(TOKENS)
    whole = Runner.create(model, 1, TOKENS).step({0: tokens}, all_logits=True)
    parts = chunked(Runner.create(model, 1, TOKENS), tokens, sizes)
    torch.testing.assert_close(parts, whole, atol=TOLERANCE, rtol=0)


def test_mixed_batches_give_the_same_bits_on_cpu(saved: SavedModel) -> None:
    model = saved.load(CPU_OPS, CPU)
    for index, logits in in_rounds(Runner.create(model, len(PROMPTS), 140)).items():
        assert torch.equal(logits, alone(model, index))


def test_mixed_batches_agree_in_torch(saved: SavedModel) -> None:
    model = saved.load(TORCH_OPS, CPU)
    for index, logits in in_rounds(Runner.create(model, len(PROMPTS), 140)).items():
        torch.testing.assert_close(logits, alone(model, index), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("ops", [CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)
@pytest.mark.parametrize("cache", ["kv", "conv", "recurrent"])
def test_a_broken_sequence_leaves_the_others_alone(saved: SavedModel, ops: OpTable, cache: str) -> None:
    model = saved.load(ops, CPU)
    healthy, poisoned = Runner.create(model, 3, 100), Runner.create(model, 3, 100)
    prompts = {0: prompt_tokens(30), 1: prompt_tokens(20), 2: prompt_tokens(90)}
    for runner in (healthy, poisoned):
        runner.step(prompts)
    victim = poisoned.sequences[1]
    place = victim.pages[0] if cache == "kv" else victim.slot
    broken = poisoned.caches.kv.plain if cache == "kv" else getattr(poisoned.caches, cache)
    broken[place] = torch.nan
    for following in ({0: [1], 1: [2], 2: [3]}, {0: [4, 5, 6], 1: [7, 8], 2: [9]}):
        expected, logits = healthy.step(following), poisoned.step(following)
        assert logits[1].isnan().any()
        # Which experts the broken row asks for may change the order of torch's sums in the other rows.
        tolerance = 0 if ops.name == "cpu" else TOLERANCE
        torch.testing.assert_close(logits[[0, 2]], expected[[0, 2]], atol=tolerance, rtol=0)


def test_only_wanted_rows_get_logits(saved: SavedModel) -> None:
    model = saved.load(CPU_OPS, CPU)
    runner = Runner.create(model, 1, 20)
    batch = runner.batch({0: prompt_tokens(20)})
    hidden = model.forward_hidden(batch, runner.caches)
    last = Runner.create(model, 1, 20).step({0: prompt_tokens(20)})
    assert hidden.shape == (20, model.config.hidden_size)
    assert torch.equal(model.logits(hidden[-1:]), last)
    assert model.logits(hidden[:0]).shape == (0, model.config.vocab_size)
