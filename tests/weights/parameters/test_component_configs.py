"""Component configurations of artifacts: the published ones, and every refusal."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.parameters.component_configs import component_configs_of, model_geometry
from ninferd.weights.parameters.config_fields import float32_value
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.presets import GEOMETRIES

Configs = dict[str, dict[str, Any]]

LAYERS_64 = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(64)]
LAYERS_40 = LAYERS_64[:40]

DENSE: Configs = {
    "text": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "vocab_size": 248320,
        "num_hidden_layers": 64,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "rms_norm_eps": 9.999999974752427e-07,
        "layer_types": LAYERS_64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 17408,
    },
    "vision": {
        "model_type": "qwen3_5_vision",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    },
    "mtp": {"architectures": ["Qwen3_5MTP"]},
    "dflash2": {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "intermediate_size": 17408,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 5,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 9.999999974752427e-07,
        "rope_parameters": {"rope_theta": 1e7},
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "dflash_config": {
            "target_layer_ids": [5, 19, 33, 47, 61],
            "mask_token_id": 248070,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        },
    },
}
"""The published configuration of Qwen3.8-27B, typed from its description."""

_MOE_TEXT = {key: value for key, value in DENSE["text"].items() if key != "intermediate_size"} | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "layer_types": LAYERS_40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
MOE: Configs = {
    "text": _MOE_TEXT,
    "vision": DENSE["vision"] | {"model_type": "qwen3_5_moe_vision"},
    "mtp": {"architectures": ["Qwen3_5MoeMTP"]},
    "dflash": DENSE["dflash2"]
    | {
        "architectures": ["DFlashDraftModel"],
        "intermediate_size": 6144,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 4096,
        "dflash_config": {"target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37], "mask_token_id": 248077},
    },
}


@pytest.mark.parametrize(("configs", "model_id"), [(DENSE, "qwen3.8-27b"), (MOE, "qwen3.6-35b-a3b")])
def test_published_configurations(configs: Configs, model_id: str) -> None:
    geometry = GEOMETRIES[model_id]
    assert model_geometry(configs, "model.ninfer", 131072) == geometry
    assert component_configs_of(geometry) == configs
    assert list(component_configs_of(geometry)["text"]) == list(configs["text"])


def test_numbers_are_spelled_as_float32() -> None:
    text = json.dumps(component_configs_of(GEOMETRIES["qwen3.8-27b"])["text"])
    assert '"rms_norm_eps": 9.999999974752427e-07' in text
    assert '"rope_theta": 10000000.0, "partial_rotary_factor": 0.25' in text
    assert float32_value(0.1) == 0.10000000149011612


def test_components_can_be_left_out() -> None:
    whole = GEOMETRIES["qwen3.8-27b"]
    text = whole.without(["vision", "mtp", "dflash2", "proposal"])
    assert text == ModelGeometry(whole.text)
    assert text.components == ("text",)
    assert whole.components == ("text", "vision", "mtp", "dflash2")
    assert whole.without(["mtp"]).components == ("text", "vision", "dflash2")


def test_components_of_unknown_kinds_are_left_out() -> None:
    configs = DENSE | {"decision": {"attention_mode": "noncausal_full_attention"}}
    assert model_geometry(configs, "model.ninfer", 131072) == GEOMETRIES["qwen3.8-27b"]


def test_both_drafters() -> None:
    dflash = MOE["dflash"] | {"dflash_config": {"target_layer_ids": [1], "mask_token_id": 0}}
    drafts = model_geometry(DENSE | {"dflash": dflash}, "model.ninfer").drafts
    assert [draft.kind for draft in drafts] == ["dflash", "dflash2"]


def test_members_of_absent_layers_are_absent() -> None:
    text = copy.deepcopy(DENSE["text"])
    text |= {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}
    with pytest.raises(InputError, match=r"m: text: unknown member 'head_dim'"):
        model_geometry({"text": text}, "m")
    assert model_geometry({"text": text, "mtp": DENSE["mtp"]}, "m").text.attention is not None
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters"):
        del text[key]
    geometry = model_geometry({"text": text}, "m")
    assert geometry.text.attention is None
    assert component_configs_of(geometry) == {"text": text}
    with pytest.raises(InputError, match=r"m: text: num_attention_heads is missing"):
        model_geometry({"text": text, "mtp": DENSE["mtp"]}, "m")


def set_in(*path: str, value: Any) -> Callable[[Configs], None]:
    def change(configs: Configs) -> None:
        table: dict[str, Any] = configs
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = value

    return change


def remove(*path: str) -> Callable[[Configs], None]:
    def change(configs: Configs) -> None:
        table: dict[str, Any] = configs
        for key in path[:-1]:
            table = table[key]
        del table[path[-1]]

    return change


ROPE = ("text", "rope_parameters")
DRAFT = ("dflash2", "dflash_config")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("text"), "model.ninfer: has no text component"),
        (set_in("text", "extra", value=1), "text: unknown member 'extra'; known: architectures, "),
        (set_in("text", "num_experts", value=8), "text: unknown member 'num_experts'"),
        (remove("text", "architectures"), "text: architectures is missing"),
        (
            set_in("text", "architectures", value=["LlamaForCausalLM"]),
            "text: architectures must be .'Qwen3_5ForCausalLM'",
        ),
        (
            set_in("text", "model_type", value="qwen3_5_moe_text"),
            "text: model_type must be 'qwen3_5_text', not 'qwen3_5_m",
        ),
        *((remove("text", key), f"text: {key} is missing") for key in DENSE["text"] if key != "architectures"),
        *(
            (set_in("text", key, value=wrong), f"text: {key} must be an integer from 1 to 16777216, not ")
            for key in ("hidden_size", "vocab_size", "max_position_embeddings", "head_dim", "intermediate_size")
            for wrong in (0, -1, 1.0, True, "1", 2**24 + 1)
        ),
        (set_in("text", "hidden_size", value=None), "text: hidden_size is missing"),
        (set_in("text", "num_hidden_layers", value=1025), "text: num_hidden_layers must be an integer from 1 to 1024"),
        (
            set_in("text", "num_hidden_layers", value=63),
            "text: layer_types has 64 entries, but num_hidden_layers is 63",
        ),
        (
            set_in("text", "layer_types", value=["mamba"] * 64),
            "text: layer_types holds 'mamba'; known: 'linear_attention'",
        ),
        (set_in("text", "layer_types", value=[[]] * 64), r"text: layer_types holds \[\]; known"),
        (set_in("text", "layer_types", value={}), "text: layer_types must be a list, not {}"),
        (set_in("text", "tie_word_embeddings", value=0), "text: tie_word_embeddings must be true or false, not 0"),
        (set_in("text", "rms_norm_eps", value=0), "text: rms_norm_eps must be a number above 0"),
        (set_in("text", "rms_norm_eps", value=float("nan")), "text: rms_norm_eps must be a number above 0"),
        (
            set_in("text", "num_attention_heads", value=23),
            r"text: num_attention_heads \(23\) must be a multiple of num_key",
        ),
        (
            set_in("text", "linear_num_value_heads", value=40),
            r"text: linear_num_value_heads \(40\) must be a multiple of lin",
        ),
        (set_in("text", "linear_conv_kernel_dim", value=65), "linear_conv_kernel_dim must be an integer from 2 to 64"),
        (set_in(*ROPE, "rope_type", value="yarn"), "text: rope_parameters: unknown member 'rope_type'"),
        (
            set_in(*ROPE, "partial_rotary_factor", value=1.5),
            "partial_rotary_factor must be a number above 0 and up to 1",
        ),
        (
            set_in(*ROPE, "partial_rotary_factor", value=0.02),
            r"\(0.02\) must make an even part of head_dim \(256\), not 5",
        ),
        (set_in(*ROPE, "partial_rotary_factor", value=0.001), r"must make an even part of head_dim \(256\), not 0"),
        (
            set_in(*ROPE, "mrope_section", value=[11, 11, 11]),
            r"mrope_section must be three counts with the sum 32, not \[",
        ),
        (set_in(*ROPE, "mrope_section", value=[16, 16]), "mrope_section must be three counts with the sum 32"),
        (set_in(*ROPE, "mrope_section", value=[32, 0, -0.0]), "mrope_section must hold integers from 0"),
        (set_in(*ROPE, "mrope_section", value=[10, 12, 10]), "mrope_section gives axis 1 12 pairs; .* it has 11"),
        (set_in(*ROPE, "mrope_section", value=[10, 11, 11]), "mrope_section gives axis 2 11 pairs; .* it has 10"),
        (
            set_in("mtp", "architectures", value=["Qwen3_5MoeMTP"]),
            r"mtp: architectures must be \['Qwen3_5MTP'\], not \['Qw",
        ),
        (set_in("mtp", "layers", value=1), "mtp: unknown member 'layers'; known: architectures"),
        (set_in("vision", "model_type", value="qwen3_5_moe_vision"), "vision: model_type must be 'qwen3_5_vision'"),
        (set_in("vision", "in_channels", value=3), "vision: unknown member 'in_channels'"),
        *((remove("vision", key), f"vision: {key} is missing") for key in DENSE["vision"]),
        (set_in("vision", "depth", value=1025), "vision: depth must be an integer from 1 to 1024"),
        (set_in("vision", "hidden_size", value=1150), r"vision: hidden_size \(1150\) must be num_heads \(16\) times a"),
        (
            set_in("vision", "hidden_size", value=16 * 70),
            r"vision: hidden_size \(1120\) must be num_heads \(16\) times a",
        ),
        (set_in("vision", "num_position_embeddings", value=2305), "num_position_embeddings must be a square, not 2305"),
        (set_in("dflash2", "hidden_size", value=5120), "dflash2: unknown member 'hidden_size'"),
        *((remove("dflash2", key), f"dflash2: {key} is missing") for key in DENSE["dflash2"]),
        *(
            (remove(*DRAFT, key), f"dflash2: dflash_config: {key} is missing")
            for key in DENSE["dflash2"]["dflash_config"]
        ),
        (
            set_in("dflash2", "architectures", value=["DFlashDraftModel"]),
            r"architectures must be \['DFlash2DraftModel'\]",
        ),
        (set_in("dflash2", "layer_types", value=["full_attention"] * 5), "dflash2: unknown member 'sliding_window'"),
        (set_in("dflash2", "num_attention_heads", value=30), r"dflash2: num_attention_heads \(30\) must be a multiple"),
        (set_in("dflash2", "head_dim", value=127), "dflash2: head_dim must be even, not 127"),
        (set_in(*DRAFT, "target_layer_ids", value=[5, 64]), "target_layer_ids must hold integers from 0 to 63, not 64"),
        (
            set_in(*DRAFT, "target_layer_ids", value=[5, 5]),
            r"target_layer_ids must be different layers, .*, not \[5, 5\]",
        ),
        (set_in(*DRAFT, "target_layer_ids", value=[]), "target_layer_ids must be different layers, at least one"),
        (
            set_in(*DRAFT, "mask_token_id", value=248320),
            "mask_token_id must be an integer from 0 to 248319, not 248320",
        ),
        (set_in(*DRAFT, "conv_group_size", value=17), r"conv_group_size \(17\) must divide .* hidden_size \(5120\)"),
        (set_in(*DRAFT, "selector_top_k", value=248321), "selector_top_k must be an integer from 1 to 248320"),
        (set_in(*DRAFT, "block_size", value=8), "dflash2: dflash_config: unknown member 'block_size'"),
    ],
)
def test_refusals_name_file_component_and_key(change: Callable[[Configs], None], problem: str) -> None:
    configs = copy.deepcopy(DENSE)
    change(configs)
    with pytest.raises(InputError, match=problem) as caught:
        model_geometry(configs, "model.ninfer")
    message = str(caught.value)
    assert message.startswith("model.ninfer: ")
    assert "\n" not in message
    assert len(message) < 700


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("intermediate_size", 17408, "unknown member 'intermediate_size'"),
        ("num_experts_per_tok", 257, "num_experts_per_tok must be an integer from 1 to 256, not 257"),
        ("num_experts", 2**17 // 40 + 1, "num_experts must be an integer from 1 to 3276"),
        ("moe_intermediate_size", None, "moe_intermediate_size is missing"),
    ],
)
def test_refusals_of_mixtures(key: str, value: object, problem: str) -> None:
    configs = copy.deepcopy(MOE)
    configs["text"][key] = value
    with pytest.raises(InputError, match=f"model.ninfer: text: {problem}"):
        model_geometry(configs, "model.ninfer")


def test_dflash_has_no_convolutions() -> None:
    configs = copy.deepcopy(MOE)
    configs["dflash"]["dflash_config"]["conv_kernel_size"] = 2
    with pytest.raises(InputError, match=r"dflash: dflash_config: unknown member 'conv_kernel_size'"):
        model_geometry(configs, "model.ninfer")


@pytest.mark.parametrize("rows", [0, -1, 248321])
def test_rows_of_the_proposal_head(rows: int) -> None:
    with pytest.raises(InputError, match=rf"proposal rows must be from 1 to vocab_size \(248320\), not {rows}"):
        model_geometry(DENSE, "model.ninfer", rows)


def axes_of(section: list[int]) -> list[int]:
    """Axis of every pair by the interleaved rule, as the documents state it."""
    axes = []
    for r in range(sum(section)):
        if r % 3 == 1 and r < 3 * section[1]:
            axes.append(1)
        elif r % 3 == 2 and r < 3 * section[2]:
            axes.append(2)
        else:
            axes.append(0)
    return axes


@pytest.mark.parametrize("pairs", range(1, 14))
def test_sections_are_possible_exactly_if_the_rule_gives_every_axis_its_pairs(pairs: int) -> None:
    for height in range(pairs + 1):
        for width in range(pairs + 1 - height):
            section = [pairs - height - width, height, width]
            text = copy.deepcopy(DENSE["text"]) | {"head_dim": 2 * pairs}
            text["rope_parameters"] = {"rope_theta": 1e7, "partial_rotary_factor": 1.0, "mrope_section": section}
            is_possible = [axes_of(section).count(axis) for axis in range(3)] == section
            if is_possible:
                model_geometry({"text": text}, "m")
            else:
                with pytest.raises(InputError, match="mrope_section gives axis"):
                    model_geometry({"text": text}, "m")
