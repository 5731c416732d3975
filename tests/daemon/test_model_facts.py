from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ninferd.config.schema import Settings
from ninferd.daemon.model_facts import ModelFacts, dense_dtype
from ninferd.engine.build import capacity_request
from ninferd.errors import InputError
from ninferd.models import load_text_model
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.opening import open_model
from tests.daemon.artifacts import CONFIG, loaded_bytes, text_tensors, write_artifact, write_safetensors
from tests.support.checkpoints import MOE, TEXT, nested, write_random_checkpoint
from tests.weights.raw_artifact import RawArtifact, text_model

CPU = torch.device("cpu")
SMALL = CONFIG | {"vocab_size": 256, "hidden_size": 128}


def facts(path: Path) -> ModelFacts:
    return ModelFacts.of(open_model(path))


@pytest.mark.parametrize(
    "config",
    [TEXT, TEXT | {"tie_word_embeddings": True}, MOE, nested(TEXT)],
    ids=["dense", "tied", "moe", "nested-with-vision"],
)
def test_sizes_are_those_of_the_engine(tmp_path: Path, config: dict[str, Any]) -> None:
    """The torch-free reading of headers predicts what the engine allocates, byte for byte in float32."""
    write_random_checkpoint(tmp_path, config, seed=1)
    model_facts = facts(tmp_path)
    model = load_text_model(model_facts.source, CPU, torch.float32, lambda _done, _total: None)
    request = capacity_request(Settings.from_layers([{"model": {"artifact": "x"}}]), model.config, torch.float32)
    assert model_facts.weights_bytes("<f4", on_cpu=True) == model.weights_bytes
    assert model_facts.kv_layout("bf16") == request.kv
    assert model_facts.state_geometry(4) == request.state
    assert model_facts.text.max_position_embeddings == model.config.max_position_embeddings


def _groupwise(parameter: str) -> str:
    if "_projection" in parameter:
        return "bf16"
    if "mlp/" in parameter:
        return "q5_g64_fp16" if parameter.endswith("down") else "q4_g64_fp16"
    return "q6_g64_fp16" if parameter.startswith("text/layers") else "q8_g32_fp16"


def _mixed(parameter: str) -> str:
    if "_projection" in parameter or parameter.endswith("embedding"):
        return "bf16"
    return "nvfp4" if "mlp/" in parameter else "fp8_e4m3fn_row_bf16"


STORED = {
    "bf16": lambda parameter: "bf16",
    "groupwise": _groupwise,
    "nvfp4-fp8": _mixed,
    "ternary": lambda parameter: "bf16" if "_projection" in parameter else "t2_g128_fp16",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("stored", STORED)
def test_sizes_of_quantised_weights_are_those_of_the_engine(
    tmp_path: Path, stored: str, tied: bool, dtype: torch.dtype
) -> None:
    raw = text_model(STORED[stored], tie_word_embeddings=tied)
    if tied:
        del raw.bindings["text/output_head"]
    model_facts = facts(raw.write(tmp_path / "m.ninfer"))
    model = load_text_model(model_facts.source, CPU, dtype, lambda _done, _total: None)
    dense: DenseDtype = "<f4" if dtype == torch.float32 else "<u2"
    assert model_facts.weights_bytes(dense, on_cpu=True) == model.weights_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_plain_weights(tmp_path: Path, tied: bool) -> None:
    config = SMALL | {"tie_word_embeddings": tied}
    model_facts = facts(write_artifact(tmp_path, config, text_tensors(config)))
    assert model_facts.weights_bytes("<f4", on_cpu=False) == loaded_bytes(config, 4)
    assert model_facts.weights_bytes("<u2", on_cpu=False) == loaded_bytes(config, 2)


def test_vision_and_draft_weights_are_not_counted(tmp_path: Path) -> None:
    before = facts(write_artifact(tmp_path, SMALL, text_tensors(SMALL)))
    size, lines = before.weights_bytes("<u2", on_cpu=False), before.lines()
    assert lines[0] == "Hugging Face directory; loaded: text"
    others = {
        "mtp.fc.weight": ("BF16", [128, 256]),
        "model.visual.patch_embed.proj.weight": ("BF16", [8, 3, 2, 16, 16]),
    }
    after = facts(write_artifact(tmp_path, SMALL, {**text_tensors(SMALL), **others}))
    assert after.weights_bytes("<u2", on_cpu=False) == size
    assert after.lines()[0] == "Hugging Face directory; loaded: text; stored but not loaded: mtp"


def test_formats_are_described(tmp_path: Path) -> None:
    assert facts(write_artifact(tmp_path, SMALL, text_tensors(SMALL))).lines()[1] == (
        "weights bf16: embedding bf16; gdn bf16 in 3; mlp bf16 in 4; attention bf16 in 1; a/b separate"
    )


def test_an_artifact_is_described_by_its_container(tmp_path: Path) -> None:
    raw = RawArtifact()
    raw.components |= {"vision": {"config": {}}, "ngram": {"config": {}}}
    raw.tensor("x", [2, 2], "bf16", bytes(8))
    raw.bind_whole("proposal/head", "x")
    source = open_model(raw.write(tmp_path / "m.ninfer"))
    assert ModelFacts.of(source).container_line == (
        "artifact version 3, 4.0 KiB; loaded: text; stored but not loaded: vision, ngram, proposal"
    )


def test_all_shards_of_an_index_are_read(tmp_path: Path) -> None:
    write_artifact(tmp_path, SMALL, {})
    (tmp_path / "model.safetensors").unlink()
    tensors = text_tensors(SMALL)
    weight_map = {name: f"{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for shard in ("0.safetensors", "1.safetensors"):
        write_safetensors(tmp_path / shard, {name: tensors[name] for name in tensors if weight_map[name] == shard})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert facts(tmp_path).weights_bytes("<f4", on_cpu=False) == loaded_bytes(SMALL, 4)


def test_layers_by_interval(tmp_path: Path) -> None:
    config = {key: value for key, value in SMALL.items() if key != "layer_types"}
    write_artifact(tmp_path, config | {"num_hidden_layers": 9, "full_attention_interval": 4}, {})
    layers = facts(tmp_path)
    assert (layers.kv_layout("bf16").layers, layers.state_geometry(4).gdn_layers) == (2, 7)


def test_another_family_is_refused_by_its_type(tmp_path: Path) -> None:
    """Before any of its missing keys is."""
    write_artifact(tmp_path, {"model_type": "llama", "num_hidden_layers": 4}, {})
    with pytest.raises(InputError, match=r"config\.json: model_type .*llama"):
        facts(tmp_path)


def test_layers_of_one_kind_only_are_refused(tmp_path: Path) -> None:
    write_artifact(tmp_path, SMALL | {"layer_types": ["full_attention"] * 4}, {})
    with pytest.raises(InputError, match=r"layer_types must hold full_attention and linear_attention"):
        facts(tmp_path)


@pytest.mark.parametrize("value", [0, -1, "4", True, 1.5])
def test_unusable_config_value_is_named(tmp_path: Path, value: object) -> None:
    write_artifact(tmp_path, SMALL | {"head_dim": value}, {})
    with pytest.raises(InputError, match=r"config\.json: head_dim must be an integer from 1 to"):
        facts(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"tensor norm\.weight \[128\] is missing"),
        (lambda tensors: tensors.update(extra=("F32", [3])), r"unexpected tensors: extra"),
        (
            lambda tensors: tensors.update({"model.embed_tokens.weight": ("F32", [255, 128])}),
            r"embed_tokens\.weight",
        ),
    ],
    ids=["missing", "left over", "shape"],
)
def test_weights_that_are_not_the_models(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    tensors = text_tensors(SMALL)
    change(tensors)
    with pytest.raises(InputError, match=message):
        facts(write_artifact(tmp_path, SMALL, tensors)).weights_bytes("<f4", on_cpu=False)


@pytest.mark.parametrize(
    ("configured", "config", "on_cpu", "dense"),
    [
        ("auto", {"dtype": "bfloat16"}, True, "<f4"),
        ("bfloat16", {}, True, "<u2"),
        ("float32", {"dtype": "bfloat16"}, False, "<f4"),
        ("auto", {"dtype": "float32"}, False, "<f4"),
        ("auto", {"torch_dtype": "float16"}, False, "<u2"),
        ("auto", {"text_config": {"dtype": "float32"}}, False, "<f4"),
        ("auto", {"dtype": "float32", "text_config": {}}, False, "<f4"),
        ("auto", {}, False, "<u2"),
    ],
)
def test_types_of_plain_weights(configured: str, config: dict[str, Any], on_cpu: bool, dense: str) -> None:
    """The same cases as the engine's own rule in tests/engine/test_build.py."""
    assert dense_dtype(configured, config, on_cpu=on_cpu) == dense


def test_a_misshapen_convolution_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, TEXT, seed=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"linear_conv_kernel_dim": 3}))
    with pytest.raises(InputError) as refused:
        facts(tmp_path).weights_bytes("<f4", on_cpu=True)
    assert str(refused.value) == (
        f"{tmp_path}/model.safetensors: tensor model.layers.0.linear_attn.conv1d.weight has shape [160, 1, 4], "
        "expected [160, 1, 3]"
    )
