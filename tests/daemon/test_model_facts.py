from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ninferd.config.schema import Settings
from ninferd.daemon.model_facts import MAX_HEADER_BYTES, read_model_facts
from ninferd.daemon.preflight import kv_geometry, state_geometry
from ninferd.engine.build import capacity_request
from ninferd.errors import InputError
from ninferd.models import load_text_model
from tests.daemon.artifacts import CONFIG, write_artifact, write_safetensors
from tests.support.checkpoints import MOE, TEXT, nested, write_random_checkpoint


@pytest.mark.parametrize(
    "config",
    [TEXT, TEXT | {"tie_word_embeddings": True}, MOE, nested(TEXT)],
    ids=["dense", "tied", "moe", "nested-with-vision"],
)
def test_sizes_are_those_of_the_engine(tmp_path: Path, config: dict[str, Any]) -> None:
    """The torch-free reading of headers predicts what the engine allocates, byte for byte in float32."""
    write_random_checkpoint(tmp_path, config, seed=1)
    facts = read_model_facts(tmp_path)
    model = load_text_model(tmp_path, torch.device("cpu"), torch.float32, lambda _done, _total: None)
    request = capacity_request(
        Settings.from_layers([{"model": {"artifact": "x"}}]), model.config, torch.float32, torch.bfloat16
    )
    assert facts.weight_elements * 4 == model.weights_bytes
    assert kv_geometry(facts, 2) == request.kv
    assert state_geometry(facts, 4) == request.state
    assert facts.max_position_embeddings == model.config.max_position_embeddings


def test_another_family_is_refused_by_its_type(tmp_path: Path) -> None:
    """Before any of its missing keys is."""
    write_artifact(tmp_path, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4}, {})
    with pytest.raises(InputError, match=r"config\.json: model_type is 'llama'; supported: qwen3_5, qwen3_5_text, "):
        read_model_facts(tmp_path)


def test_vision_and_draft_weights_are_not_counted(tmp_path: Path) -> None:
    weights = {
        "model.language_model.norm.weight": ("BF16", [10]),
        "model.visual.patch.weight": ("BF16", [1000]),
        "mtp.fc.weight": ("BF16", [1000]),
        "lm_head.weight": ("F32", [4, 5]),
    }
    write_artifact(tmp_path, CONFIG | {"tie_word_embeddings": False}, weights)
    facts = read_model_facts(tmp_path)
    assert (facts.weight_elements, facts.weight_stored_bytes) == (30, 10 * 2 + 20 * 4)


def test_all_shards_of_an_index_are_read(tmp_path: Path) -> None:
    write_artifact(tmp_path, CONFIG, {})
    (tmp_path / "model.safetensors").unlink()
    write_safetensors(tmp_path / "a.safetensors", {"x": ("F32", [3])})
    write_safetensors(tmp_path / "b.safetensors", {"y": ("F32", [4])})
    weight_map = {"x": "a.safetensors", "y": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_model_facts(tmp_path).weight_elements == 7


def test_layers_by_interval(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "layer_types"}
    write_artifact(tmp_path, config | {"num_hidden_layers": 9, "full_attention_interval": 4}, {})
    facts = read_model_facts(tmp_path)
    assert (facts.attention_layers, facts.gdn_layers) == (2, 7)


@pytest.mark.parametrize("value", [None, 0, -1, "4", True, 1.5])
def test_unusable_config_value_is_named(tmp_path: Path, value: object) -> None:
    write_artifact(tmp_path, CONFIG | {"head_dim": value}, {})
    with pytest.raises(InputError, match=r"config.json: head_dim must be a positive integer"):
        read_model_facts(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    write_artifact(tmp_path, CONFIG, {})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors: cannot be read: No such file"):
        read_model_facts(tmp_path)


def test_truncated_weights_are_named_with_sizes(tmp_path: Path) -> None:
    write_artifact(tmp_path, CONFIG, {"x": ("F32", [8])})
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"is cut short: {len(whole) - 1} bytes, its header needs {len(whole)}"):
        read_model_facts(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage, not a header",
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"[]",
        (11).to_bytes(8, "little") + b'{"x":{"a":1',
        (13).to_bytes(8, "little") + b'{"x":{"a":1}}',
    ],
)
def test_file_that_is_no_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    write_artifact(tmp_path, CONFIG, {})
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model.safetensors: is not a safetensors file"):
        read_model_facts(tmp_path)


def test_index_without_a_map_is_named(tmp_path: Path) -> None:
    write_artifact(tmp_path, CONFIG, {})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="weight_map must be an object"):
        read_model_facts(tmp_path)
