"""Synthetic artifacts: sizes, statistics, and that an engine serves them."""

from __future__ import annotations

import hashlib
import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninferd.config.schema import Settings
from ninferd.engine.build import build_engine
from ninferd.engine.messages import GenerationRequest, PromptIdentity, SamplingParams, TokensGenerated
from ninferd.errors import InputError
from ninferd.weights.artifact.plan import plan_artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.parameters.registry import Parameter, parameters
from ninferd.weights.synthesis import pool
from ninferd.weights.synthesis.artifact import write_synthetic
from ninferd.weights.synthesis.model import SyntheticModel, plan_synthetic
from ninferd.weights.synthesis.statistics import direct_values
from tests.weights.synthesis.geometries import DENSE, MOE, TEXT, VISION, written

RECIPES = ("nvfp4", "groupwise-int", "qwen3.8-nvfp4", "bf16")


def write(model: SyntheticModel, path: Path) -> ArtifactSource:
    progress: list[tuple[int, int]] = []
    size = write_synthetic(model, path, NumpyEncoders(), lambda done, total: progress.append((done, total)))
    assert path.stat().st_size == size
    assert progress[-1][0] == progress[-1][1] == max(done for done, _ in progress)
    return ArtifactSource.open(path)


def values(source: ArtifactSource, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.concatenate([decode_rows(run.matrix, run.begin, run.end) for run in source.matrix(name, *shape)])


def expected_sigma(name: str, columns: int, layers: int) -> float:
    if name == "text/token_embedding":
        return 0.02
    if name == "text/output_head":
        return 3 / sqrt(columns)
    last = name.rsplit("/", 1)[-1]
    return 1 / sqrt(columns) / (sqrt(2 * layers) if last in ("output", "down", "fc2") else 1)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("config", [DENSE, MOE, VISION], ids=["dense", "moe", "vision"])
def test_statistics_of_every_parameter(
    config: dict[str, Any], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "POOL_ELEMENTS", 1 << 16)  # several turns in most matrices
    model = plan_synthetic(written(tmp_path, config), recipe, seed=3)
    source = write(model, tmp_path / "model.ninfer")
    for parameter in parameters(model.geometry):
        name, shape = parameter.name, parameter.shape
        if parameter.direct is None:
            found = values(source, name, shape).astype(np.float64)
            deviations = found / expected_sigma(name, shape[1], 4)
            noise = 4 / sqrt(found.size)
            assert abs(deviations.mean()) < 5 * noise, name
            assert deviations.std() == pytest.approx(1, rel=0.03 + noise), name
        else:
            found = source.array(name, shape).astype(np.float64)
        assert np.isfinite(found).all(), name
        if name.endswith(("_norm", "/norm", "norm1_weight", "norm2_weight", "norm_weight")):
            centre = 1 if name.endswith("gdn/norm") or name.startswith("vision/") else 0
            assert abs(found.mean() - centre) < 0.1, name
            assert 0.05 < found.std() < 0.15, name


def test_decays_and_time_steps() -> None:
    """exp(a_log) uniform from 1 to 16, softplus(dt_bias) log-uniform from 0.001 to 0.1."""
    generator = np.random.default_rng(8)
    names = ("text/layers/0/gdn/a_log", "text/layers/0/gdn/dt_bias")
    a_log, dt_bias = (direct_values(Parameter(name, (20_000,), "fp32"), 0, generator) for name in names)
    rates = np.exp(a_log.astype(np.float64))
    logs = np.log10(np.log1p(np.exp(dt_bias.astype(np.float64))))
    for found, lowest, highest in ((rates, 1, 16), (logs, -3, -1)):
        assert (found.min(), found.max()) == pytest.approx((lowest, highest), abs=0.002 * (highest - lowest))
        assert found.mean() == pytest.approx((lowest + highest) / 2, abs=0.02 * (highest - lowest))
        assert found.std() == pytest.approx((highest - lowest) / sqrt(12), rel=0.03)


@pytest.mark.parametrize("recipe", RECIPES)
def test_matrices_of_many_turns_have_full_rank(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POOL_ELEMENTS", 128 * 256)
    source = write(plan_synthetic(written(tmp_path, DENSE), recipe, seed=0), tmp_path / "model.ninfer")
    embedding = values(source, "text/token_embedding", (4224, 256))
    assert np.linalg.matrix_rank(embedding) == 256
    turns = {block.tobytes() for block in embedding.reshape(33, 128, 256)}
    assert len(turns) == 2  # as many as a pool of 128 rows and 256 columns has


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    geometry = written(tmp_path, DENSE)
    digests = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write(plan_synthetic(geometry, "nvfp4", seed), tmp_path / f"{name}.ninfer")
        digests.append(hashlib.sha256((tmp_path / f"{name}.ninfer").read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_layers_differ(tmp_path: Path) -> None:
    source = write(plan_synthetic(written(tmp_path, DENSE), "nvfp4", 0), tmp_path / "model.ninfer")
    found = [values(source, f"text/layers/{layer}/mlp/down", (256, 384)) for layer in range(4)]
    assert len({each.tobytes() for each in found}) > 1  # of six turns


@pytest.mark.parametrize(("config", "recipe"), [(DENSE, "nvfp4"), (DENSE, "groupwise-int"), (MOE, "nvfp4")])
def test_an_engine_serves_it(config: dict[str, Any], recipe: str, tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    write(plan_synthetic(written(tmp_path, config), recipe, seed=1), path)
    settings = {"model": {"artifact": str(path)}, "engine": {"device": "cpu", "max_context": 512, "kv_capacity": 1024}}
    engine = build_engine(Settings.model_validate(settings), lambda _: None)
    prompt = PromptIdentity.from_token_ids(list(range(64, 192)))
    engine.submit(GenerationRequest("a", prompt, SamplingParams(seed=0, temperature=1.0), 64, ()))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for event in engine.step() if isinstance(event, TokensGenerated) for token in event.token_ids]
    assert len(tokens) == 64
    assert len(set(tokens)) > 16  # it is not stuck
    assert max(tokens) < 4096  # rows beyond the tokenizer are never sampled


@pytest.mark.parametrize(
    ("geometry", "recipe", "gigabytes"),
    [
        ("qwen3.8-27b", "qwen3.8-nvfp4", 23.4),
        ("qwen3.6-27b", "nvfp4", 19.4),
        ("qwen3.6-35b-a3b", "groupwise-int", 22.6),
    ],
)
def test_published_geometries_are_planned(geometry: str, recipe: str, gigabytes: float) -> None:
    model = plan_synthetic(geometry, recipe, seed=0)
    plan = plan_artifact(model.inventory.contents, "model.ninfer")
    assert plan.total_bytes / 1e9 == pytest.approx(gigabytes, abs=0.7)
    assert model.geometry.proposal_rows == 4096
    head = model.inventory.contents.components["text"].proposal
    assert head is not None
    assert head.rows == 4096


def test_components_are_left_out() -> None:
    model = plan_synthetic("qwen3.8-27b", "nvfp4", 0, without={"vision", "dflash2", "proposal"})
    assert model.geometry.components == ("text", "mtp")
    assert list(model.inventory.contents.components) == ["text", "mtp"]
    assert "preprocessor_config.json" not in model.frontend


def test_draft_head_ids_are_tokens(tmp_path: Path) -> None:
    model = plan_synthetic("qwen3.8-27b", "nvfp4", 0)
    ids = next(each for each in parameters(model.geometry) if each.name == "proposal/token_ids")
    found = direct_values(ids, model.token_count, model.generator(ids.name))
    assert found.dtype == np.int32
    assert sorted(found.tolist()) == list(range(4096))


def test_preprocessors_fit_the_vision_tower(tmp_path: Path) -> None:
    source = write(plan_synthetic(written(tmp_path, VISION), "nvfp4", 0), tmp_path / "model.ninfer")
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        content = source.resource(name)
        assert content is not None
        config = json.loads(content)
        assert (config["patch_size"], config["temporal_patch_size"], config["merge_size"]) == (16, 2, 2)


def test_a_vocabulary_below_the_tokenizer_is_refused(tmp_path: Path) -> None:
    small = {**DENSE, **TEXT, "vocab_size": 4095}
    with pytest.raises(InputError, match="vocab_size is 4095"):
        plan_synthetic(written(tmp_path, small), "nvfp4", 0)


def test_unknown_geometry_and_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"published are qwen3\.6-27b"):
        plan_synthetic(str(tmp_path), "nvfp4", 0)
    with pytest.raises(InputError, match="no recipe"):
        plan_synthetic("qwen3.8-27b", "nvfp3", 0)


def test_an_artifact_is_not_overwritten_and_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    model = plan_synthetic(written(tmp_path, DENSE), "nvfp4", 0)
    path = tmp_path / "model.ninfer"

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(model, path, NumpyEncoders(), interrupt)
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write(model, path)
    assert path.read_text() == "mine"
