"""Reading ``config.json``: both forms, older spellings, and every refusal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.models import TextConfig
from tests.support.checkpoints import MOE, TEXT, nested

SOURCE = Path("some/config.json")


def read(config: dict[str, Any]) -> TextConfig:
    return TextConfig.from_json(config, SOURCE)


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(config) | changes


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def test_a_dense_text_config() -> None:
    config = read(TEXT)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (512, 64, 128)
    assert (config.attention.heads, config.attention.kv_heads, config.attention.head_dim) == (4, 2, 32)
    assert (config.rope.theta, config.rope.rotary_dim, config.rope.mrope_section) == (1e7, 8, (2, 1, 1))
    assert config.attention.rotary_dim == 8
    assert (config.gated_delta.key_heads, config.gated_delta.value_heads) == (2, 6)
    assert config.gated_delta.conv_channels == 2 * 2 * 16 + 6 * 16
    assert (config.num_hidden_layers, config.attention_layer_count, config.gdn_layer_count) == (4, 1, 3)
    assert config.moe is None
    assert not config.tie_word_embeddings


def test_a_mixture_of_experts() -> None:
    config = read(MOE)
    assert config.intermediate_size is None
    assert config.moe is not None
    assert (config.moe.num_experts, config.moe.experts_per_token) == (8, 3)
    assert (config.moe.intermediate_size, config.moe.shared_intermediate_size) == (32, 48)


def test_the_nested_form_reads_the_same() -> None:
    assert read(nested(TEXT)) == read(TEXT)


def test_the_outer_key_ties_in_the_nested_form() -> None:
    outer = nested(TEXT) | {"tie_word_embeddings": True}
    assert read(outer).tie_word_embeddings
    assert not read(without(outer, "tie_word_embeddings")).tie_word_embeddings


def test_the_older_spelling_of_rope() -> None:
    older = without(TEXT, "rope_parameters") | {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    }
    assert read(older) == read(TEXT)


def test_layer_types_from_the_interval() -> None:
    config = read(without(TEXT, "layer_types") | {"full_attention_interval": 4, "num_hidden_layers": 9})
    attention = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert attention == [3, 7]
    assert config.num_hidden_layers == 9


REQUIRED = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_no_default_takes_the_place_of_a_missing_key(key: str) -> None:
    with pytest.raises(InputError, match=rf"some/config\.json: {key} is missing"):
        read(without(TEXT, key))


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factor", "mrope_section", "rope_type"])
def test_no_default_takes_the_place_of_a_rope_key(key: str) -> None:
    rope = without(TEXT["rope_parameters"], key)
    with pytest.raises(InputError, match="is missing"):
        read(changed(TEXT, rope_parameters=rope))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; supported: qwen3_5, "),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"attention_bias": True}, "attention_bias must be false"),
        ({"attn_output_gate": False}, "attn_output_gate must be true"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type must be 'swish'"),
        ({"hidden_size": 0}, "hidden_size must be an integer from 1 to 16777216, not 0"),
        ({"hidden_size": 1 << 40}, "hidden_size must be an integer from 1 to 16777216"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"hidden_size": "64"}, "hidden_size must be an integer from 1 to 16777216, not '64'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries, but num_hidden_layers is 4"),
        ({"layer_types": ["mamba"] * 4}, "layer_types holds 'mamba'"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"num_attention_heads": 5}, r"num_attention_heads \(5\) must be a multiple of num_key_value_heads \(2\)"),
        ({"linear_num_value_heads": 5}, r"linear_num_value_heads \(5\) must be a multiple"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be an integer from 2 to 64"),
        ({"rope_parameters": []}, r"rope_parameters must be an object, not \[\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_values_name_file_key_and_what_would_be_right(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=rf"some/config\.json: {problem}"):
        read(changed(TEXT, **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rope_type": "yarn"}, "rope_type 'yarn' is not available in this build"),
        ({"mrope_section": [2, 1]}, "mrope_section must be three counts with the sum 4"),
        ({"mrope_section": [2, 2, 1]}, "mrope_section must be three counts with the sum 4"),
        ({"mrope_section": [5, -2, 1]}, "mrope_section must be three counts"),
        ({"mrope_interleaved": False}, "mrope_interleaved must be true"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be a number above 0 and up to 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_rope_parameters(changes: dict[str, Any], problem: str) -> None:
    rope = TEXT["rope_parameters"] | changes
    with pytest.raises(InputError, match=rf"some/config\.json: rope_parameters: {problem}"):
        read(changed(TEXT, rope_parameters=rope))


def test_more_experts_per_token_than_experts() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok must be an integer from 1 to 8, not 9"):
        read(changed(MOE, num_experts_per_tok=9))
