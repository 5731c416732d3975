"""A model with more rows than its tokenizer has tokens, as the published ones are: 248,320 rows and 248,077 tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ninferd.config.schema import Settings
from ninferd.engine.build import build_engine
from ninferd.engine.messages import (
    GenerationRequest,
    PromptIdentity,
    RequestFailed,
    SamplingParams,
    TokensGenerated,
)
from ninferd.errors import InputError


def with_tokens(checkpoint: Path, directory: Path, count: int) -> Settings:
    """The random checkpoint, whose head has 512 rows, with a tokenizer of ``count`` tokens."""
    shutil.copytree(checkpoint, directory)
    vocab = {f"t{token_id}": token_id for token_id in range(count)}
    definition = {"model": {"type": "BPE", "vocab": vocab}, "decoder": {"type": "ByteLevel"}}
    (directory / "tokenizer.json").write_text(json.dumps(definition))
    engine = {"device": "cpu", "kv_dtype": "fp32", "max_context": 128, "kv_capacity": 128}
    return Settings.from_layers([{"model": {"artifact": str(directory)}, "engine": engine}])


def generated(settings: Settings, prompt: list[int], temperature: float = 0.0) -> list[int] | str:
    """40 tokens, or why there are none."""
    engine = build_engine(settings, lambda _progress: None)
    params = SamplingParams(seed=5, temperature=temperature)
    engine.submit(GenerationRequest("r", PromptIdentity.from_token_ids(prompt), params, 40, ()))
    tokens: list[int] = []
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, RequestFailed):
                return event.message
            if isinstance(event, TokensGenerated):
                tokens += event.token_ids
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 2.0], ids=["greedy", "drawn"])
def test_no_token_beyond_the_tokenizer_comes_out(checkpoint: Path, tmp_path: Path, temperature: float) -> None:
    settings = with_tokens(checkpoint, tmp_path / "few", 20)
    tokens = generated(settings, [1, 2, 3], temperature=temperature)
    assert isinstance(tokens, list)
    assert len(tokens) == 40
    assert max(tokens) < 20
    whole = generated(with_tokens(checkpoint, tmp_path / "all", 512), [1, 2, 3], temperature=temperature)
    assert isinstance(whole, list)
    assert max(whole) >= 20, "the model itself prefers others"


def test_nor_goes_in(checkpoint: Path, tmp_path: Path) -> None:
    settings = with_tokens(checkpoint, tmp_path / "few", 20)
    assert generated(settings, [1, 20]) == "prompt token 1 has id 20, the vocabulary holds 0 to 19"


def test_more_tokens_than_rows_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    settings = with_tokens(checkpoint, tmp_path / "many", 513)
    with pytest.raises(InputError, match=r"tokenizer\.json: has token ids up to 512, but the model has 512 rows only"):
        build_engine(settings, lambda _progress: None)
