"""Version 2 artifacts: published sizes from the inventory alone, and the view of it as bindings and uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import ResourceObject, StoredObject, TensorObject
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.legacy import legacy_view
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.parameters.registry import parameters
from tests.support.legacy_inventory import (
    PUBLISHED_BYTES,
    PUBLISHED_OBJECTS,
    encoded_bytes,
    file_bytes,
    legacy_inventory,
    resources,
)

IDENTITIES = list(PUBLISHED_BYTES)
IDS = ["/".join(identity) for identity in IDENTITIES]
DENSE = ("qwen3.8-27b", "groupwise-int")


def tensor(name: str, format: str, shape: tuple[int, ...]) -> TensorObject:
    return TensorObject(name, shape, format, "any", 0, encoded_bytes(format, shape))


def objects_of(model_id: str, weights_id: str, *, with_dflash2: bool = False) -> dict[str, StoredObject]:
    objects: dict[str, StoredObject] = {
        name: ResourceObject(name, "raw_bytes_v1", 0, size) for name, size in resources(model_id).items()
    }
    for name, format, shape in legacy_inventory(model_id, weights_id, with_dflash2=with_dflash2):
        objects[name] = tensor(name, format, shape)
    return objects


@pytest.mark.parametrize(("model_id", "weights_id"), IDENTITIES, ids=IDS)
def test_published_sizes_follow_from_the_geometry(model_id: str, weights_id: str) -> None:
    entries = legacy_inventory(model_id, weights_id)
    assert len(entries) + len(resources(model_id)) == PUBLISHED_OBJECTS[model_id, weights_id]
    assert file_bytes(model_id, weights_id, entries, resources(model_id)) == PUBLISHED_BYTES[model_id, weights_id]


def test_the_published_size_of_another_publisher() -> None:
    """Ostfralla's file: the qwen3.6-27b/nvfp4 inventory with the resources of Qwen3.8."""
    entries = legacy_inventory("qwen3.6-27b", "nvfp4")
    assert file_bytes("qwen3.6-27b", "nvfp4", entries, resources("qwen3.8-27b")) == 18_324_067_840


@pytest.mark.parametrize(("model_id", "weights_id"), IDENTITIES, ids=IDS)
def test_the_view_binds_every_parameter_once(model_id: str, weights_id: str) -> None:
    objects = objects_of(model_id, weights_id)
    view = legacy_view(model_id, objects, "model.ninfer")
    drafts = ["dflash", "dflash2"] if model_id != "qwen3.6-35b-a3b" else []
    expected = parameters(GEOMETRIES[model_id].without(drafts))
    assert view.bindings.keys() == {parameter.name for parameter in expected}
    for parameter in expected:
        elements = 1
        for size in parameter.shape:
            elements *= size
        assert view.bindings[parameter.name].elements == elements
    assert {(use.parameter, use.input) for use in view.uses} == {
        (parameter.name, source) for parameter in expected for source in parameter.inputs
    }
    covered: Counter[str] = Counter()
    for binding in set(view.bindings.values()):  # aliases share a binding
        covered.update({part.object_id: part.elements for part in binding.parts})
    tensors = {name: found for name, found in objects.items() if isinstance(found, TensorObject)}
    assert covered == {name: t.elements for name, t in tensors.items() if not name.endswith("input_scale_divisor")}


@pytest.mark.parametrize(("model_id", "weights_id"), IDENTITIES, ids=IDS)
def test_the_components_are_those_of_the_model(model_id: str, weights_id: str) -> None:
    view = legacy_view(model_id, objects_of(model_id, weights_id), "model.ninfer")
    configs = {name: component.config for name, component in view.components.items()}
    drafts = [] if model_id == "qwen3.6-35b-a3b" else ["dflash", "dflash2"]
    assert model_geometry(configs, "model.ninfer", 131072) == GEOMETRIES[model_id].without(drafts)
    text = view.components["text"]
    assert text.proposal is not None
    assert text.proposal.rows == 131072
    assert text.resources == {
        role: f"frontend/{role}"
        for role in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    }
    assert view.components["vision"].resources.keys() == {"preprocessor_config.json", "video_preprocessor_config.json"}
    assert {component.target for name, component in view.components.items() if name != "text"} == {"text"}


@pytest.mark.parametrize(
    ("weights_id", "model_id", "name", "object_id", "rows"),
    [
        ("groupwise-int", "qwen3.8-27b", "text/layers/3/attention/query", "attention/query_key", (0, 6144)),
        ("groupwise-int", "qwen3.8-27b", "text/layers/3/attention/key", "attention/query_key", (6144, 7168)),
        ("groupwise-int", "qwen3.8-27b", "text/layers/3/attention/value", "attention/gate_value", (6144, 7168)),
        ("nvfp4", "qwen3.6-27b", "text/layers/3/attention/key", "attention/query_key_gate_value", (6144, 7168)),
        ("nvfp4", "qwen3.6-27b", "text/layers/3/attention/gate", "attention/query_key_gate_value", (7168, 13312)),
        ("nvfp4", "qwen3.6-27b", "text/layers/3/attention/value", "attention/query_key_gate_value", (13312, 14336)),
        ("nvfp4", "qwen3.8-27b", "text/layers/0/gdn/value", "gdn/query_key_value_z", (4096, 10240)),
        ("groupwise-int", "qwen3.6-27b", "text/layers/0/gdn/z", "gdn/value_z", (6144, 12288)),
        ("nvfp4", "qwen3.8-27b", "text/layers/0/gdn/b_projection", "gdn/a_b_projection", (48, 96)),
        ("nvfp4", "qwen3.6-27b", "text/layers/0/gdn/b_projection", "gdn/b_projection", (0, 48)),
        ("nvfp4", "qwen3.8-27b", "mtp/layers/0/mlp/up", "mtp/layer/mlp/gate_up", (17408, 34816)),
        ("groupwise-int", "qwen3.6-35b-a3b", "text/layers/0/moe/shared_score", "moe/router_shared_gate", (256, 257)),
        ("groupwise-int", "qwen3.6-35b-a3b", "text/layers/5/moe/experts/3/up", "moe/routed_gate_up", (3584, 4096)),
        ("groupwise-int", "qwen3.6-35b-a3b", "text/layers/5/moe/experts/3/down", "moe/routed_down", (6144, 8192)),
        ("groupwise-int", "qwen3.6-35b-a3b", "mtp/layers/0/moe/shared/up", "moe/shared_gate_up", (512, 1024)),
    ],
)
def test_rows_of_fused_parents(
    weights_id: str, model_id: str, name: str, object_id: str, rows: tuple[int, int]
) -> None:
    objects = objects_of(model_id, weights_id)
    part = legacy_view(model_id, objects, "model.ninfer").bindings[name].parts[0]
    stored = objects[part.object_id]
    assert isinstance(stored, TensorObject)
    assert part.object_id.endswith(object_id)
    assert (part.begin, part.end) == (rows[0] * stored.shape[1], rows[1] * stored.shape[1])


def test_vision_names() -> None:
    bindings = legacy_view(DENSE[0], objects_of(*DENSE), "model.ninfer").bindings
    assert bindings["vision/layers/2/norm1_bias"].parts[0].object_id == "vision/layers/2/norm1/bias"
    assert bindings["vision/merger/norm_weight"].parts[0].object_id == "vision/merger/norm/weight"
    key_bias = bindings["vision/layers/2/attention/key_bias"].parts[0]
    assert (key_bias.object_id, key_bias.begin, key_bias.end) == ("vision/layers/2/attention/qkv_bias", 1152, 2304)


def test_a_drafter_projects_the_context_with_its_own_keys() -> None:
    objects = objects_of(*DENSE, with_dflash2=True)
    assert len(objects) == 1190
    bindings = legacy_view(DENSE[0], objects, "model.ninfer").bindings
    for part in ("key", "value"):
        prefix = "dflash2/layers/4/attention/"
        assert bindings[f"{prefix}context_{part}"] == bindings[f"{prefix}{part}"]
    assert sum(name.startswith("dflash2/") for name in bindings) == 91


def test_activation_divisors_of_a_site_are_shared() -> None:
    uses = legacy_view("qwen3.6-27b", objects_of("qwen3.6-27b", "nvfp4"), "model.ninfer").uses
    found = {use.parameter: use for use in uses if use.auxiliaries}
    assert len({use.auxiliaries["activation_input_divisor"] for use in found.values()}) == 247
    site = "text/layers/27/attention/input_projection/input_scale_divisor"
    for part in ("query", "key", "gate", "value"):
        use = found[f"text/layers/27/attention/{part}"]
        assert use.auxiliaries["activation_input_divisor"].parts[0].object_id == site
        assert use.activation_policy == "AllowA4"
    assert "text/layers/3/attention/query" not in found  # bfloat16 in this file
    policies = {use.parameter: use.activation_policy for use in uses}
    assert policies["text/layers/3/attention/query"] == "A16Only"


def test_fp8_allows_eight_bit_activations() -> None:
    uses = legacy_view("qwen3.8-27b", objects_of("qwen3.8-27b", "nvfp4"), "model.ninfer").uses
    assert {use.activation_policy for use in uses if use.parameter == "text/layers/60/mlp/down"} == {"AllowA8"}


def test_an_unknown_weights_profile_is_read_by_its_objects() -> None:
    """Formats of single objects may be any: the names alone decide."""
    objects = objects_of(*DENSE)
    name = "text/layers/9/mlp/down"
    objects[name] = tensor(name, "bf16", (5120, 17408))
    assert legacy_view(DENSE[0], objects, "model.ninfer").bindings[name].is_whole


def test_components_that_are_not_there() -> None:
    kept = {name: found for name, found in objects_of(*DENSE).items() if not name.startswith(("mtp/", "vision/"))}
    del kept["text/draft_head"], kept["text/draft_head_token_ids"]
    view = legacy_view(DENSE[0], kept, "model.ninfer")
    assert view.components.keys() == {"text"}
    assert view.components["text"].proposal is not None
    assert view.components["text"].proposal.rows is None
    assert view.bindings.keys() == {name for name in view.bindings if name.startswith("text/")}
    heads = [use.input for use in view.uses if use.parameter == "text/output_head"]
    assert heads == ["text/final_hidden"]


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(InputError, match=r"^model\.ninfer: model_id 'qwen4-1b' is unknown; known: qwen3\.6-27b, "):
        legacy_view("qwen4-1b", {}, "model.ninfer")


def test_an_object_of_another_shape() -> None:
    objects = objects_of(*DENSE)
    name = "text/layers/0/gdn/query_key"
    wrong = objects[name]
    assert isinstance(wrong, TensorObject)
    objects[name] = replace(wrong, shape=(4096, 4096))
    with pytest.raises(InputError, match=rf"object {name} has shape \[4096, 4096\], this model needs \[4096, 5120\]"):
        legacy_view(DENSE[0], objects, "model.ninfer")


def test_a_parameter_in_two_objects() -> None:
    objects = objects_of(*DENSE)
    name = "text/layers/0/gdn/a_b_projection"
    objects[name] = tensor(name, "bf16", (96, 5120))
    with pytest.raises(InputError, match=rf"{name} and text/layers/0/gdn/a_projection both hold .*/a_projection"):
        legacy_view(DENSE[0], objects, "model.ninfer")


@pytest.mark.parametrize("name", ["text/layers/64/input_norm", "text/extra", "dflash2/extra"])
def test_an_object_that_the_model_does_not_have(name: str) -> None:
    objects = objects_of(*DENSE)
    objects[name] = tensor(name, "bf16", (5120,))
    with pytest.raises(InputError, match=rf"object {name} is not one of this model's"):
        legacy_view(DENSE[0], objects, "model.ninfer")


def test_objects_of_unknown_components_are_left_alone() -> None:
    objects = objects_of(*DENSE)
    objects["dspark/weight"] = tensor("dspark/weight", "bf16", (5120,))
    assert "dspark/weight" not in legacy_view(DENSE[0], objects, "model.ninfer").bindings
