"""Synthetic sources: what a loader makes of them, without a file."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels_numba.matrices import Matrix
from ninferd.errors import InputError
from ninferd.models import load_text_model
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.loading.resolve import resolve_plan
from ninferd.weights.synthesis import pool
from ninferd.weights.synthesis.model import plan_synthetic
from ninferd.weights.synthesis.source import SyntheticSource
from tests.support.matrix_values import matrix_values
from tests.weights.synthesis.geometries import DENSE, MOE, VISION, written

CPU = torch.device("cpu")


def source_of(directory: Path, config: dict[str, Any], recipe: str, seed: int = 0) -> SyntheticSource:
    return SyntheticSource(plan_synthetic(written(directory, config), recipe, seed), NumpyEncoders())


def loaded(source: SyntheticSource) -> dict[str, tuple[Matrix, ...]]:
    plan = resolve_plan(source, text_plan(source.geometry.text), "<f4")
    return dict(load_matrices(plan.matrices, CPU, lambda *_: None, source.generate))


@pytest.mark.parametrize("recipe", ["nvfp4", "groupwise-int", "qwen3.8-nvfp4", "bf16"])
@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_values_of_every_matrix(
    config: dict[str, Any], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "POOL_ELEMENTS", 1 << 16)
    for key, matrices in loaded(source_of(tmp_path, config, recipe)).items():
        for matrix in matrices:
            if "moe/gate_up" in key or "moe/down" in key:
                continue
            values = matrix_values(matrix)
            sigma = 1 / sqrt(values.shape[1])
            if key.endswith(("/output", "/down")):
                sigma /= sqrt(8)
            sigma = {"text/token_embedding": 0.02, "text/output_head": 3 * sigma}.get(key, sigma)
            assert abs(values.mean()) < 20 / sqrt(values.size) * sigma, key
            assert values.std() == pytest.approx(sigma, rel=0.03 + 4 / sqrt(values.size)), key
            if key == "text/token_embedding":
                assert np.linalg.matrix_rank(values) == 256


def test_layers_differ(tmp_path: Path) -> None:
    matrices = loaded(source_of(tmp_path, DENSE, "nvfp4"))
    found = [matrix_values(matrices[f"text/layers/{layer}/mlp/down"][0]) for layer in range(4)]
    assert len({values.tobytes() for values in found}) > 1  # of six turns


def test_experts_differ(tmp_path: Path) -> None:
    stack = loaded(source_of(tmp_path, MOE, "nvfp4"))["text/layers/0/moe/gate_up"][0]
    codes = stack.codes  # type: ignore[union-attr]
    assert codes.shape == (4, 256, 128)
    assert len({expert.numpy().tobytes() for expert in codes}) == 4


@pytest.mark.parametrize("recipe", ["nvfp4", "groupwise-int", "qwen3.8-nvfp4"])
def test_the_same_seed_gives_the_same_matrices(recipe: str, tmp_path: Path) -> None:
    first, again, other = (loaded(source_of(tmp_path, DENSE, recipe, seed)) for seed in (1, 1, 2))
    for key in ("text/output_head", "text/layers/0/gdn/in", "text/layers/3/mlp/down"):
        for index, matrix in enumerate(first[key]):
            values = matrix_values(matrix)
            np.testing.assert_array_equal(values, matrix_values(again[key][index]))
            assert not np.array_equal(values, matrix_values(other[key][index]))


@pytest.mark.parametrize("config", [DENSE, MOE, VISION], ids=["dense", "moe", "vision"])
def test_a_model_is_loaded_from_it(config: dict[str, Any], tmp_path: Path) -> None:
    source = source_of(tmp_path, config, "nvfp4")
    model = load_text_model(source, CPU, torch.float32, lambda *_: None)
    assert model.config.vocab_size == 4224
    assert source.resource("tokenizer.json")
    assert source.config.get("text_config", source.config)["mtp_num_hidden_layers"] == 1


def test_tied_embeddings(tmp_path: Path) -> None:
    source = source_of(tmp_path, DENSE | {"tie_word_embeddings": True}, "nvfp4")
    assert source.has("text/output_head")
    assert source.matrix("text/output_head", 4224, 256) == source.matrix("text/token_embedding", 4224, 256)
    assert "text/output_head" not in loaded(source)


def test_what_it_lacks_is_named(tmp_path: Path) -> None:
    source = source_of(tmp_path, DENSE, "nvfp4")
    assert not source.has("vision/patch_embedding")
    with pytest.raises(InputError, match=r"vision/patch_embedding .* is missing"):
        source.matrix("vision/patch_embedding", 128, 1536)
    with pytest.raises(InputError, match=r"has shape \[4224, 256\]"):
        source.matrix("text/output_head", 4225, 256)
    with pytest.raises(InputError, match="unexpected parameters: mtp/"):
        source.require_no_others(frozenset({"mtp/final_norm"}))
