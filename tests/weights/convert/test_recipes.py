"""Recipes against the tables 9.2 and 9.3 of the format's description."""

from __future__ import annotations

import pytest

from ninferd.errors import InputError
from ninferd.weights.convert.recipes import activation_policy, find_recipe, recipe_names

L = "text/layers/{}/"
DENSE = {
    "groupwise-int": {
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q8_g32_fp16",
        L.format(3) + "attention/query": "q4_g64_fp16",
        L.format(3) + "attention/key": "q4_g64_fp16",
        L.format(3) + "attention/gate": "q5_g64_fp16",
        L.format(3) + "attention/value": "q5_g64_fp16",
        L.format(3) + "attention/output": "q5_g64_fp16",
        L.format(0) + "gdn/query": "q4_g64_fp16",
        L.format(0) + "gdn/z": "q5_g64_fp16",
        L.format(0) + "gdn/output": "q5_g64_fp16",
        L.format(0) + "gdn/a_projection": "bf16",
        L.format(0) + "mlp/up": "q4_g64_fp16",
        L.format(0) + "mlp/down": "q5_g64_fp16",
        "mtp/layers/0/mlp/gate": "q8_g32_fp16",
        "mtp/input_projection": "q8_g32_fp16",
        "vision/patch_embedding": "q6_g64_fp16",
        "vision/merger/fc2": "q8_g32_fp16",
        "vision/layers/26/attention/query": "q4_g64_fp16",
        "vision/layers/26/attention/output": "q5_g64_fp16",
        "vision/layers/26/mlp/fc1": "q4_g64_fp16",
        "vision/layers/26/mlp/fc2": "q5_g64_fp16",
        "dflash2/layers/4/mlp/down": "q8_g32_fp16",
        "dflash2/layers/4/mlp_conv/kernel_projection": "bf16",
        "dflash2/candidate_selector/hidden_projection": "bf16",
        "dflash2/candidate_selector/predecessor_codebook": "bf16",
        "proposal/head": "q4_g64_fp16",
    },
    "qwen3_6_27b": {
        "text/token_embedding": "q6_g64_fp16",
        "text/output_head": "q6_g64_fp16",
        L.format(63) + "mlp/down": "q5_g64_fp16",
    },
    "nvfp4": {
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q8_g32_fp16",
        L.format(3) + "attention/value": "nvfp4",
        L.format(0) + "gdn/z": "nvfp4",
        L.format(0) + "gdn/b_projection": "bf16",
        L.format(0) + "mlp/down": "nvfp4",
        "mtp/layers/0/attention/query": "q8_g32_fp16",
    },
    "qwen3.8-nvfp4": {
        "text/token_embedding": "fp8_e4m3fn_row_bf16",
        "text/output_head": "fp8_e4m3fn_row_bf16",
        L.format(3) + "attention/query": "fp8_e4m3fn_row_bf16",
        L.format(0) + "gdn/output": "fp8_e4m3fn_row_bf16",
        L.format(0) + "gdn/a_projection": "bf16",
        L.format(55) + "mlp/gate": "nvfp4",
        L.format(56) + "mlp/gate": "fp8_e4m3fn_row_bf16",
    },
    "qwen3_6_27b_nvfp4": {
        "text/output_head": "q8_g32_fp16",
        L.format(23) + "attention/gate": "bf16",
        L.format(27) + "attention/gate": "nvfp4",
        L.format(7) + "attention/output": "bf16",
        L.format(11) + "attention/output": "nvfp4",
        L.format(4) + "gdn/output": "bf16",
        L.format(5) + "gdn/output": "nvfp4",
        L.format(4) + "gdn/query": "nvfp4",
        L.format(3) + "mlp/down": "nvfp4",
    },
    "fp8-importing": {
        "text/token_embedding": "fp8_e4m3fn_row_bf16",
        L.format(63) + "mlp/up": "nvfp4",
        L.format(63) + "attention/query": "fp8_e4m3fn_row_bf16",
        "dflash2/feature_projection": "q8_g32_fp16",
    },
    "qwen3_8_27b_nvfp4_full": {
        L.format(3) + "attention/query": "bf16",
        "dflash2/feature_projection": "nvfp4",
        "dflash2/layers/0/attention_conv/kernel_projection": "bf16",
        "mtp/layers/0/attention/query": "q8_g32_fp16",
    },
    "bf16": {"text/token_embedding": "bf16", "vision/merger/fc1": "bf16", "proposal/head": "bf16"},
}
MOE = {
    "groupwise-int": {
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q6_g64_fp16",
        L.format(0) + "moe/experts/255/gate": "q4_g64_fp16",
        L.format(0) + "moe/experts/255/down": "q5_g64_fp16",
        L.format(34) + "moe/experts/0/down": "q6_g64_fp16",
        L.format(35) + "moe/experts/0/down": "q5_g64_fp16",
        L.format(38) + "moe/experts/0/down": "q6_g64_fp16",
        L.format(39) + "moe/experts/0/down": "q6_g64_fp16",
        L.format(0) + "moe/shared/down": "q8_g32_fp16",
        L.format(0) + "moe/router": "bf16",
        L.format(0) + "moe/shared_score": "bf16",
        L.format(0) + "gdn/query": "q8_g32_fp16",
        "mtp/layers/0/moe/experts/0/gate": "q8_g32_fp16",
        "mtp/layers/0/moe/router": "bf16",
    },
    "qwen3_6_35b_a3b_nvfp4": {
        "text/output_head": "q6_g64_fp16",
        L.format(0) + "moe/shared/down": "nvfp4",
        L.format(0) + "attention/query": "q8_g32_fp16",
    },
    "qwen3.8-nvfp4": {
        L.format(34) + "moe/experts/0/gate": "nvfp4",
        L.format(35) + "moe/experts/0/gate": "fp8_e4m3fn_row_bf16",
        L.format(34) + "moe/router": "bf16",
    },
    "nvfp4": {L.format(39) + "moe/experts/0/gate": "nvfp4", L.format(39) + "moe/shared/up": "nvfp4"},
}


@pytest.mark.parametrize(
    ("is_moe", "layer_count", "recipe", "parameter", "format"),
    [
        (is_moe, layer_count, recipe, parameter, format)
        for is_moe, layer_count, table in ((False, 64, DENSE), (True, 40, MOE))
        for recipe, formats in table.items()
        for parameter, format in formats.items()
    ],
)
def test_formats(is_moe: bool, layer_count: int, recipe: str, parameter: str, format: str) -> None:
    assert find_recipe(recipe, is_moe).format_of(parameter, layer_count) == format


def test_the_mixed_recipe_keeps_its_proportion_at_other_depths() -> None:
    formats = [find_recipe("qwen3.8-nvfp4", False).format_of(L.format(layer) + "mlp/up", 8) for layer in range(8)]
    assert formats == ["nvfp4"] * 7 + ["fp8_e4m3fn_row_bf16"]


@pytest.mark.parametrize(
    ("recipe", "is_separate"),
    [("groupwise-int", True), ("qwen3_6_27b_nvfp4", True), ("nvfp4", False), ("qwen3_8_27b_nvfp4", False)],
)
def test_which_recipes_keep_a_and_b_apart(recipe: str, is_separate: bool) -> None:
    assert find_recipe(recipe, False).is_separate(L.format(0) + "gdn/a_projection") == is_separate
    assert not find_recipe(recipe, False).is_separate(L.format(0) + "gdn/query")


def test_policies() -> None:
    assert activation_policy("nvfp4", True) == "AllowA4"
    assert activation_policy("nvfp4", False) == "A16Only"
    assert activation_policy("fp8_e4m3fn_row_bf16", False) == "AllowA8"
    assert activation_policy("q8_g32_fp16", True) == "A16Only"


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"there is no recipe 'fp4'; known: bf16, nvfp4, groupwise-int, qwen3\.8-nvfp4"
    ):
        find_recipe("fp4", False)


def test_a_recipe_of_expert_models_is_refused_for_a_dense_one() -> None:
    with pytest.raises(InputError, match="recipe qwen3_6_35b_a3b is for mixture-of-experts models"):
        find_recipe("qwen3_6_35b_a3b", False)
    assert "qwen3_6_35b_a3b" in recipe_names()
