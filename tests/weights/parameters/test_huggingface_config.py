"""config.json to component configurations and back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.weights.parameters.component_configs import component_configs_of, model_geometry
from ninferd.weights.parameters.huggingface_config import component_configs, huggingface_config
from ninferd.weights.parameters.presets import DFLASH2_27B, DFLASH_35B, GEOMETRIES
from tests.support.checkpoints import MOE, TEXT, nested
from tests.weights.parameters.test_component_configs import DENSE
from tests.weights.parameters.test_component_configs import MOE as MOE_COMPONENTS

Config = dict[str, Any]

OFFICIAL_TEXT: Config = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 17408,
    "layer_types": DENSE["text"]["layer_types"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "output_gate_type": "swish",
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 248320,
}
OFFICIAL: Config = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": OFFICIAL_TEXT,
    "tie_word_embeddings": False,
    "vision_config": {
        "deepstack_visual_indexes": [],
        "depth": 27,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 4304,
        "model_type": "qwen3_5",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 5120,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
"""A published configuration, typed from its description."""


def without(*keys: str) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        for key in keys:
            config["text_config"].pop(key, None)

    return change


def test_the_official_configuration() -> None:
    expected = {name: config for name, config in DENSE.items() if name != "dflash2"}
    assert component_configs(OFFICIAL, "config.json") == expected


def test_the_official_mixture() -> None:
    experts = {key: value for key, value in MOE_COMPONENTS["text"].items() if "expert" in key or key.startswith("moe_")}
    text = {key: value for key, value in OFFICIAL_TEXT.items() if key not in ("intermediate_size", "layer_types")}
    text |= experts | {"model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40}
    text |= {"num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32}
    config = OFFICIAL | {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "vision_config": OFFICIAL["vision_config"] | {"out_hidden_size": 2048, "model_type": "qwen3_5_moe"},
    }
    expected = {name: config for name, config in MOE_COMPONENTS.items() if name != "dflash"}
    assert component_configs(config, "config.json") == expected


def test_a_flat_text_configuration() -> None:
    flat = OFFICIAL_TEXT | {"architectures": ["Qwen3_5ForCausalLM"]}
    assert component_configs(flat, "config.json") == {"text": DENSE["text"], "mtp": DENSE["mtp"]}


@pytest.mark.parametrize(
    "change",
    [
        without("layer_types"),
        without("layer_types", "full_attention_interval"),
        without("rms_norm_eps"),
        without("attention_bias", "hidden_act", "attn_output_gate", "mamba_ssm_dtype", "output_gate_type"),
        lambda config: config["text_config"].update(rope_parameters={"mrope_section": [11, 11, 10]}),
        lambda config: config["text_config"].update(
            rope_parameters=None,
            rope_theta=1e7,
            partial_rotary_factor=0.25,
            rope_scaling={"type": "mrope", "mrope_section": [11, 11, 10]},
        ),
        lambda config: config["text_config"].update(
            rope_theta=10000000.0, rope_scaling={"rope_type": "default", "mrope_section": [11, 11, 10]}
        ),
        lambda config: config.pop("architectures"),
        lambda config: config.pop("tie_word_embeddings"),
        lambda config: config["vision_config"].pop("out_hidden_size"),
    ],
    ids=[
        "interval",
        "usual interval",
        "usual eps",
        "usual arithmetic",
        "usual rope",
        "older rope",
        "rope said twice",
        "no architecture",
        "inner tie",
        "no output width",
    ],
)
def test_other_spellings_of_the_same(change: Callable[[Config], None]) -> None:
    config = copy.deepcopy(OFFICIAL)
    change(config)
    assert component_configs(config, "config.json") == component_configs(OFFICIAL, "config.json")


def test_the_outer_tie_wins() -> None:
    config = copy.deepcopy(OFFICIAL) | {"tie_word_embeddings": True}
    assert component_configs(config, "config.json")["text"]["tie_word_embeddings"] is True


@pytest.mark.parametrize("key", ["language_model_only", "vision_config"])
def test_without_vision(key: str) -> None:
    config = copy.deepcopy(OFFICIAL)
    config[key] = True if key == "language_model_only" else None
    assert component_configs(config, "config.json").keys() == {"text", "mtp"}


@pytest.mark.parametrize("value", [0, None])
def test_without_mtp(value: int | None) -> None:
    config = copy.deepcopy(OFFICIAL)
    config["text_config"]["mtp_num_hidden_layers"] = value
    assert component_configs(config, "config.json").keys() == {"text", "vision"}


@pytest.mark.parametrize(
    ("place", "key", "value", "problem"),
    [
        ("", "architectures", ["LlamaForCausalLM"], "config.json: architectures must be one of Qwen3_5ForCausalLM, "),
        ("", "architectures", [["x"]], r"architectures must be one of .*, not \[\['x'\]\]"),
        ("", "text_config", [], r"config.json: text_config must be an object, not \[\]"),
        ("text_config", "model_type", "llama", "text_config: model_type is 'llama'; supported: qwen3_5, "),
        ("text_config", "hidden_act", "gelu", "hidden_act must be 'silu' in this model family"),
        ("text_config", "attention_bias", True, "attention_bias must be False in this model family"),
        ("text_config", "attention_bias", 0, "attention_bias must be False in this model family"),
        ("text_config", "attn_output_gate", False, "attn_output_gate must be True in this model family"),
        ("text_config", "output_gate_type", "sigmoid", "output_gate_type must be 'swish' or 'silu'"),
        ("text_config", "mamba_ssm_dtype", "bfloat16", "mamba_ssm_dtype must be 'float32' in this model family"),
        ("text_config", "mtp_num_hidden_layers", 2, "mtp_num_hidden_layers must be an integer from 0 to 1, not 2"),
        ("text_config", "mtp_use_dedicated_embeddings", True, "mtp_use_dedicated_embeddings must be False"),
        ("text_config", "hidden_size", "5120", "text_config: hidden_size must be an integer from 1 to 16777216"),
        ("text_config", "num_hidden_layers", 63, "layer_types has 64 entries, but num_hidden_layers is 63"),
        ("text_config", "vocab_size", None, "text_config: vocab_size is missing"),
        ("text_config", "rope_theta", 10000, "text_config: rope_theta is given twice, as 10000.0 and 10000000.0"),
        ("text_config", "rope_parameters", {"rope_type": "default"}, "rope_parameters must have mrope_section"),
        (
            "text_config",
            "rope_scaling",
            {"mrope_section": [10, 11, 11]},
            "mrope_section differs between rope_parameters and rope_scaling",
        ),
        ("text_config", "rope_scaling", {"rope_type": "yarn"}, "rope_type 'yarn' is not available in this build"),
        ("text_config", "rope_scaling", {"type": "linear"}, "type 'linear' is not available in this build"),
        ("text_config", "rope_scaling", {"mrope_interleaved": False}, "mrope_interleaved must be true"),
        ("vision_config", "in_channels", 1, "vision_config: in_channels must be 3 in this model family"),
        ("vision_config", "hidden_act", "silu", "vision_config: hidden_act must be 'gelu_pytorch_tanh'"),
        ("vision_config", "deepstack_visual_indexes", [8], r"vision_config: deepstack_visual_indexes must be \[\]"),
        ("vision_config", "out_hidden_size", 3584, "vision_config: out_hidden_size must be 5120, not 3584"),
        ("vision_config", "depth", None, "vision_config: depth is missing"),
    ],
)
def test_refusals(place: str, key: str, value: object, problem: str) -> None:
    config = copy.deepcopy(OFFICIAL)
    (config[place] if place else config)[key] = value
    with pytest.raises(InputError, match=problem) as caught:
        component_configs(config, "config.json")
    assert str(caught.value).startswith("config.json: ")


@pytest.mark.parametrize("config", [TEXT, MOE, nested(TEXT), OFFICIAL], ids=["dense", "moe", "nested", "official"])
def test_there_and_back(config: Config) -> None:
    """What an artifact keeps of a configuration says the same of the model, in both readers."""
    components = component_configs(config, "config.json")
    model_geometry(components, "config.json")
    rebuilt = huggingface_config(components)
    assert component_configs(rebuilt, "config.json") == components
    assert TextConfig.from_json(rebuilt, Path("rebuilt")) == TextConfig.from_json(config, Path("config.json"))
    assert json.loads(json.dumps(rebuilt)) == rebuilt


@pytest.mark.parametrize("model_id", GEOMETRIES)
def test_published_models_have_a_configuration(model_id: str) -> None:
    geometry = GEOMETRIES[model_id]
    config = huggingface_config(component_configs_of(geometry))
    text = TextConfig.from_json(config, Path("config.json"))
    assert text.hidden_size == geometry.text.hidden_size
    assert text.layer_types == geometry.text.layer_types
    assert text.rms_norm_eps == 1e-6  # not the longer spelling of the float32
    assert text.rope.theta == 1e7
    assert (text.moe is not None) == geometry.text.is_moe
    assert config["vision_config"]["out_hidden_size"] == geometry.text.hidden_size


DRAFT: Config = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61], "conv_kernel_size": 2},
    "conv_kernel_size": 99,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 262144,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000000,
    "sliding_window": 2048,
    "vocab_size": 248320,
}


def test_a_drafter_is_a_component_of_its_own() -> None:
    """Keys of dflash_config win over those beside it."""
    found = component_configs(DRAFT, "config.json")
    assert found == {"dflash2": DENSE["dflash2"]}
    whole = model_geometry(DENSE | found, "config.json")
    assert whole.drafts == (DFLASH2_27B,)


def test_a_drafter_of_the_older_kind() -> None:
    config = DRAFT | {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37], "mask_token_id": 248077},
        "intermediate_size": 6144,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 4096,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    }
    found = component_configs(config, "config.json")
    assert found == {"dflash": MOE_COMPONENTS["dflash"]}
    assert model_geometry(MOE_COMPONENTS | found, "config.json").drafts == (DFLASH_35B,)


def test_a_drafter_without_layer_types_attends_fully() -> None:
    config = {key: value for key, value in DRAFT.items() if key not in ("layer_types", "sliding_window")}
    draft = component_configs(config, "config.json")["dflash2"]
    assert draft["layer_types"] == ["full_attention"] * 5
    assert "sliding_window" not in draft


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("hidden_act", "gelu", "hidden_act must be 'silu', not 'gelu'"),
        ("attention_bias", True, "attention_bias must be False, not True"),
        ("rope_parameters", {"rope_type": "yarn"}, "rope_parameters: rope_type must be 'default', not 'yarn'"),
        ("rope_theta", None, "rope_theta is missing"),
        ("sliding_window", None, "sliding_window is missing"),
        ("dflash_config", {"target_layer_ids": [0]}, "mask_token_id is missing"),
        ("selector_rank", 0, "selector_rank must be an integer from 1"),
    ],
)
def test_refusals_of_drafters(key: str, value: object, problem: str) -> None:
    with pytest.raises(InputError, match=f"config.json: {problem}"):
        component_configs(DRAFT | {key: value}, "config.json")
