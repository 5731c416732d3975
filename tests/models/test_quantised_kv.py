"""The embedded model with every form of cached keys and values."""

from __future__ import annotations

import pytest
import torch

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model
from tests.support.batching import PROMPTS, chunked, in_rounds
from tests.support.models import prompt_tokens
from tests.support.sequences import Runner

CPU = torch.device("cpu")
TOKENS = 150
QUANTISED = [name for name, codec in KV_CODECS.items() if not codec.is_plain]


@pytest.fixture(scope="module")
def model() -> Qwen3_5Text:
    source = open_model(artifact_path("embedded:ninfer-tiny"))
    return load_text(source, text_config(source), CPU_OPS, CPU, torch.float32, lambda _done, _total: None)


@pytest.mark.parametrize("codec", QUANTISED)
def test_chunks_and_mixed_batches_give_the_same_bits(model: Qwen3_5Text, codec: str) -> None:
    """A token that was decoded reads the same keys and values as one that was prefilled."""
    tokens = prompt_tokens(TOKENS)
    whole = Runner.create(model, 1, TOKENS, codec).step({0: tokens}, all_logits=True)
    for sizes in ([149, 1], [63, 65, 22], [100, *[1] * 50]):
        assert torch.equal(chunked(Runner.create(model, 1, TOKENS, codec), tokens, sizes), whole)
    for index, logits in in_rounds(Runner.create(model, len(PROMPTS), 140, codec)).items():
        expected = Runner.create(model, 1, 140, codec, seed=index).step({0: PROMPTS[index]}, all_logits=True)
        assert torch.equal(logits, expected)


@pytest.mark.parametrize("codec", QUANTISED)
def test_both_tables_of_ops_agree(model: Qwen3_5Text, codec: str) -> None:
    """But for codes at the edge between two, which last bits decide: far nearer than to a cache in float32."""
    tokens, source = prompt_tokens(60), open_model(artifact_path("embedded:ninfer-tiny"))
    other = load_text(source, text_config(source), TORCH_OPS, CPU, torch.float32, lambda _done, _total: None)
    ours, theirs, plain = (
        Runner.create(each, 1, 60, kv_dtype).step({0: tokens}, all_logits=True)
        for each, kv_dtype in ((model, codec), (other, codec), (model, "fp32"))
    )
    assert 0 < float((ours - theirs).norm()) < 0.3 * float((ours - plain).norm())


@pytest.mark.parametrize("codec", QUANTISED)
def test_broken_bytes_harm_their_own_sequence_only(model: Qwen3_5Text, codec: str) -> None:
    healthy, poisoned = Runner.create(model, 3, 100, codec), Runner.create(model, 3, 100, codec)
    prompts = {0: prompt_tokens(30), 1: prompt_tokens(20), 2: prompt_tokens(90)}
    for runner in (healthy, poisoned):
        runner.step(prompts)
    poisoned.caches.kv.pages[poisoned.sequences[1].pages[0]] = 0xFF
    for following in ({0: [1], 1: [2], 2: [3]}, {0: [4, 5, 6], 1: [7, 8], 2: [9]}):
        expected, logits = healthy.step(following), poisoned.step(following)
        assert not torch.equal(logits[1], expected[1])
        assert torch.equal(logits[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("codec", QUANTISED)
def test_a_token_that_is_not_finite_shows_in_its_own_logits(model: Qwen3_5Text, codec: str) -> None:
    """It is stored as finite numbers, so the request must end by what it computes itself."""
    runner = Runner.create(model, 2, 100, codec)
    runner.step({0: prompt_tokens(20), 1: prompt_tokens(30)})
    runner.caches.recurrent[runner.sequences[0].slot] = torch.nan
    logits = runner.step({0: [1], 1: [2]})
    assert logits[0].isnan().all()
    assert logits[1].isfinite().all()
