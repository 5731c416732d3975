"""Inventories against what is published: sizes to the byte, numbers of objects, bindings and uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import TensorObject
from ninferd.weights.artifact.plan import Plan, plan_artifact
from ninferd.weights.convert.choices import Choice, assumed_choices
from ninferd.weights.convert.inventory import Inventory, take_inventory
from ninferd.weights.convert.recipes import find_recipe
from ninferd.weights.convert.version2 import version2_file
from ninferd.weights.parameters.geometry import MlpGeometry, ModelGeometry, MoeGeometry
from ninferd.weights.parameters.presets import GEOMETRIES
from tests.support.legacy_inventory import PUBLISHED_BYTES, PUBLISHED_OBJECTS, resources

FRONTEND = {
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}
TEMPLATE = "chat_template.jinja"
DENSE = GEOMETRIES["qwen3.8-27b"]
MOE = GEOMETRIES["qwen3.6-35b-a3b"]

PUBLISHED = {
    "CaptainArni Swift 1.5": ("fp8-importing", 9_897, 22_783_241_220, 1270, 401_408),
    "wallawalla47": ("fp8-importing", 8_952, 22_783_240_452, 1270, 401_408),
    "neroued nvfp4": ("qwen3_8_27b_nvfp4", 9_897, 23_719_715_844, 1246, 393_216),
    "neroued groupwise": ("qwen3_8_27b", 9_897, 20_437_521_664, 1190, 372_736),
    "headpiece747 swift": ("qwen3_8_27b_nvfp4_swift", 10_871, 19_782_449_156, 1590, 462_848),
    "headpiece747 qat": ("qwen3_8_27b_nvfp4_qat", 10_871, 18_946_877_188, 1600, 466_944),
    "headpiece747 full": ("qwen3_8_27b_nvfp4_full", 10_871, 19_715_597_060, 1573, 458_752),
}


def inventory(geometry: ModelGeometry, name: str, template_bytes: int = 9_897) -> Inventory:
    recipe = find_recipe(name, geometry.text.is_moe)
    sources = {role: {"path": f"/models/Qwen3.8-27B-{role}"} for role in ("base", "quantized", "dflash2")}
    return take_inventory(
        geometry,
        recipe,
        assumed_choices(geometry, recipe),
        FRONTEND | {TEMPLATE: template_bytes},
        {"name": "qwen3.8-27b"},
        {"converter": "ninfer-v3", "recipe": name, "sources": sources},
    )


@cache
def planned(geometry: ModelGeometry, name: str, template_bytes: int = 9_897) -> Plan:
    return plan_artifact(inventory(geometry, name, template_bytes).contents, "model.ninfer")


@pytest.mark.parametrize(("recipe", "template", "size", "objects", "start"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_artifacts_to_the_byte(recipe: str, template: int, size: int, objects: int, start: int) -> None:
    plan = planned(DENSE, recipe, template)
    assert plan.total_bytes == size
    assert plan.payload_start == start
    assert len(plan.directory.objects) == objects
    assert len(plan.directory.bindings) == 1513
    assert len(plan.directory.uses) == 844


def test_formats_of_the_swift_1_5_artifact() -> None:
    objects = planned(DENSE, "fp8-importing").directory.objects.values()
    formats = Counter(found.format if isinstance(found, TensorObject) else "resource" for found in objects)
    assert formats == {
        "bf16": 579,
        "fp32": 288,
        "fp8_e4m3fn_row_bf16": 130,
        "nvfp4": 128,
        "q4_g64_fp16": 55,
        "q5_g64_fp16": 54,
        "q8_g32_fp16": 28,
        "q6_g64_fp16": 1,
        "int32": 1,
        "resource": 6,
    }


VERSION_2 = {
    ("qwen3.6-27b", "groupwise-int"): "qwen3_6_27b",
    ("qwen3.6-27b", "nvfp4"): "qwen3_6_27b_nvfp4",
    ("qwen3.8-27b", "groupwise-int"): "qwen3_8_27b",
    ("qwen3.8-27b", "nvfp4"): "qwen3_8_27b_nvfp4",
    ("qwen3.6-35b-a3b", "groupwise-int"): "qwen3_6_35b_a3b",
}


@pytest.mark.parametrize("identity", VERSION_2, ids="/".join)
def test_published_version_2_files_to_the_byte(identity: tuple[str, str]) -> None:
    model_id, weights_id = identity
    geometry = GEOMETRIES[model_id]
    if not geometry.text.is_moe:
        geometry = geometry.without(("dflash", "dflash2"))
    recipe = find_recipe(VERSION_2[identity], geometry.text.is_moe)
    frontend = {name.removeprefix("frontend/"): size for name, size in resources(model_id).items()}
    choices = assumed_choices(geometry, recipe)
    taken = take_inventory(geometry, recipe, choices, frontend, {"name": model_id}, {})
    file = version2_file(geometry, taken, frontend, weights_id)
    assert file.file_bytes == PUBLISHED_BYTES[identity]
    assert file.objects == PUBLISHED_OBJECTS[identity]


def test_version_2_has_no_name_for_separate_context_projections() -> None:
    with pytest.raises(InputError, match=r"dflash2/layers/0/attention/context_key as nvfp4: version 2 has no name"):
        version2_file(DENSE, inventory(DENSE, "qwen3_8_27b_nvfp4_qat"), FRONTEND, "nvfp4")


def test_numbers_of_bindings() -> None:
    assert len(planned(DENSE.without(["dflash2"]), "nvfp4").directory.bindings) == 1422
    assert len(planned(MOE, "groupwise-int").directory.bindings) == 32_713
    assert len(planned(DENSE.without(["dflash2", "vision", "mtp", "proposal"]), "nvfp4").directory.bindings) == 963


def test_objects_are_ordered_and_named_as_by_the_native_converter() -> None:
    objects = list(planned(DENSE, "fp8-importing").directory.objects.values())
    ids = [found.id for found in objects]
    assert ids[:6] == [
        "resource/text/tokenizer.json",
        "resource/text/tokenizer_config.json",
        "resource/text/chat_template.jinja",
        "resource/text/generation_config.json",
        "resource/vision/preprocessor_config.json",
        "resource/vision/video_preprocessor_config.json",
    ]
    weights = [name for name in ids if name.startswith("weight/")]
    assert weights == [f"weight/{index:06d}" for index in range(len(weights))]
    assert ids[6 + len(weights) :] == [f"auxiliary/{index:06d}" for index in range(192)]
    shapes = [found.shape for found in objects if isinstance(found, TensorObject)]
    assert shapes[:3] == [(16384, 5120), (96, 5120), (34816, 5120)]  # layer 0: gdn, a and b, gate and up


@pytest.mark.parametrize(
    ("parameter", "rows"),
    [
        ("text/layers/3/attention/query", (0, 6144)),
        ("text/layers/3/attention/key", (6144, 7168)),
        ("text/layers/3/attention/gate", (7168, 13312)),
        ("text/layers/3/attention/value", (13312, 14336)),
        ("text/layers/0/gdn/z", (10240, 16384)),
        ("text/layers/0/mlp/up", (17408, 34816)),
        ("text/layers/0/gdn/b_projection", (48, 96)),
        ("dflash2/layers/0/attention/context_value", (5120, 6144)),
    ],
)
def test_rows_in_fused_parents(parameter: str, rows: tuple[int, int]) -> None:
    (part,) = planned(DENSE, "nvfp4").directory.bindings[parameter].parts
    assert (part.begin // 5120, part.end // 5120) == rows


def test_rows_of_expert_banks() -> None:
    bindings = planned(MOE, "nvfp4").directory.bindings
    part = bindings["text/layers/2/moe/experts/7/up"].parts[0]
    assert (part.begin // 2048, part.end // 2048) == (7 * 1024 + 512, 8 * 1024)
    down = bindings["text/layers/2/moe/experts/7/down"].parts[0]
    assert (down.begin // 512, down.end // 512) == (7 * 2048, 8 * 2048)


def test_groupwise_parents_are_the_two_pairs_and_a_and_b_are_apart() -> None:
    directory = planned(DENSE, "groupwise-int").directory
    parents = {
        name: directory.bindings[f"text/layers/{name}"].parts[0].object_id
        for name in ("0/gdn/query", "0/gdn/key", "0/gdn/value", "0/gdn/z", "0/gdn/a_projection", "0/gdn/b_projection")
    }
    assert parents["0/gdn/query"] == parents["0/gdn/key"] != parents["0/gdn/value"] == parents["0/gdn/z"]
    assert parents["0/gdn/a_projection"] != parents["0/gdn/b_projection"]


def test_every_use_of_calibrated_nvfp4_has_its_own_divisor() -> None:
    uses = {(use.parameter, use.input): use for use in planned(DENSE, "fp8-importing").directory.uses}
    gate = uses["text/layers/0/mlp/gate", "text/layers/0/ffn_input"]
    up = uses["text/layers/0/mlp/up", "text/layers/0/ffn_input"]
    assert gate.activation_policy == up.activation_policy == "AllowA4"
    assert gate.auxiliaries["activation_input_divisor"] != up.auxiliaries["activation_input_divisor"]
    assert uses["text/layers/3/attention/query", "text/layers/3/mixer_input"].activation_policy == "AllowA8"
    assert uses["text/output_head", "mtp/final_hidden"].activation_policy == "AllowA8"
    assert uses["dflash2/layers/0/mlp/up", "dflash2/layers/0/mlp_input"].activation_policy == "A16Only"


def test_uncalibrated_nvfp4_computes_with_16_bits_and_has_no_divisors() -> None:
    directory = planned(DENSE, "nvfp4").directory
    assert {use.activation_policy for use in directory.uses} == {"A16Only"}
    assert not any(name.startswith("auxiliary/") for name in directory.objects)


def small(geometry: ModelGeometry, **changes: Any) -> ModelGeometry:
    return replace(geometry, text=replace(geometry.text, **changes))


def test_a_matrix_that_does_not_fit_the_tiles_falls_back_to_q8() -> None:
    geometry = small(DENSE.without(["dflash2", "vision", "mtp", "proposal"]), feed_forward=MlpGeometry(17408 + 32))
    choices = assumed_choices(geometry, find_recipe("nvfp4", False))
    assert choices["text/layers/0/mlp/gate"].format == "q8_g32_fp16"
    assert choices["text/layers/0/mlp/gate"].note == "[17440, 5120] does not fit the tiles of nvfp4"
    assert choices["text/layers/0/mlp/down"].format == "q8_g32_fp16"
    assert choices["text/layers/0/gdn/query"].format == "nvfp4"


def test_tied_embeddings_are_stored_once() -> None:
    directory = planned(small(DENSE, tie_word_embeddings=True), "groupwise-int").directory
    assert directory.bindings["text/output_head"] == directory.bindings["text/token_embedding"]
    assert len(directory.objects) == 1189


def imported(divisors: dict[str, float], geometry: ModelGeometry = DENSE) -> Plan:
    """The all-nvfp4 recipe over a source whose divisors are as given, 2 elsewhere."""
    recipe = find_recipe("nvfp4", geometry.text.is_moe)
    choices = {
        name: Choice("nvfp4", True, divisors.get(name, 2.0), 3.0) if choice.format == "nvfp4" else choice
        for name, choice in assumed_choices(geometry, recipe).items()
    }
    return plan_artifact(take_inventory(geometry, recipe, choices, {}, {}, {}).contents, "model.ninfer")


def test_imported_matrices_of_different_divisors_do_not_share_an_object() -> None:
    bindings = imported({"text/layers/0/mlp/up": 4.0, "text/layers/3/attention/gate": 4.0}).directory.bindings
    assert bindings["text/layers/0/mlp/gate"].is_whole
    assert bindings["text/layers/0/mlp/up"].is_whole
    assert bindings["text/layers/1/mlp/up"].parts[0].object_id == bindings["text/layers/1/mlp/gate"].parts[0].object_id
    attention = [bindings[f"text/layers/3/attention/{name}"] for name in ("query", "key", "gate", "value")]
    assert attention[0].parts[0].object_id == attention[1].parts[0].object_id
    assert attention[2].is_whole
    assert attention[3].is_whole


def test_experts_of_different_divisors_share_their_bank() -> None:
    text = small(MOE.without(["dflash", "vision", "mtp", "proposal"]), feed_forward=MoeGeometry(4, 2, 512, 512))
    directory = imported({"text/layers/0/moe/experts/3/up": 4.0}, text).directory
    objects = {
        name: directory.objects[directory.bindings[f"text/layers/{name}"].parts[0].object_id]
        for name in ("0/moe/experts/0/gate", "0/moe/experts/0/down", "1/moe/experts/0/gate")
    }
    assert [found.divisors for found in objects.values() if isinstance(found, TensorObject)] == [8, 1, 1]
