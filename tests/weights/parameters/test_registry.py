"""Counts, shapes and uses of all parameters, and which may share a parent, as published."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import prod

import pytest

from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.packing import packing_groups
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.parameters.registry import Parameter, parameters, text_parameters

DENSE = GEOMETRIES["qwen3.8-27b"]
MOE = GEOMETRIES["qwen3.6-35b-a3b"]


def by_name(geometry: ModelGeometry) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in parameters(geometry)}


def test_published_counts_of_the_27b() -> None:
    counts = Counter(parameter.component for parameter in parameters(DENSE))
    assert counts == {"text": 963, "mtp": 16, "vision": 441, "dflash2": 91, "proposal": 2}
    assert counts.total() == 1513
    assert sum(len(parameter.inputs) for parameter in parameters(DENSE)) == 844


def test_published_counts_without_the_drafter() -> None:
    assert len(parameters(DENSE.without(["dflash2"]))) == 1422
    assert GEOMETRIES["qwen3.6-27b"].without(["dflash"]) == DENSE.without(["dflash2"])


def test_published_count_of_the_35b() -> None:
    assert len(parameters(MOE)) == 32_713


@pytest.mark.parametrize("model_id", GEOMETRIES)
def test_names_are_unique_and_text_comes_first(model_id: str) -> None:
    geometry = GEOMETRIES[model_id]
    names = [parameter.name for parameter in parameters(geometry)]
    assert len(set(names)) == len(names)
    text = text_parameters(geometry)
    assert parameters(geometry)[: len(text)] == text
    assert {parameter.component for parameter in text} == {"text"}


@pytest.mark.parametrize(
    ("geometry", "name", "shape"),
    [
        (DENSE, "text/output_head", (248320, 5120)),
        (DENSE, "text/layers/3/attention/gate", (6144, 5120)),
        (DENSE, "text/layers/63/attention/value", (1024, 5120)),
        (DENSE, "text/layers/3/attention/output", (5120, 6144)),
        (DENSE, "text/layers/0/gdn/convolution", (4, 10240)),
        (DENSE, "text/layers/0/gdn/a_projection", (48, 5120)),
        (DENSE, "text/layers/0/gdn/query", (2048, 5120)),
        (DENSE, "text/layers/0/gdn/z", (6144, 5120)),
        (DENSE, "text/layers/62/mlp/down", (5120, 17408)),
        (DENSE, "mtp/input_projection", (5120, 10240)),
        (DENSE, "mtp/layers/0/attention/query", (6144, 5120)),
        (DENSE, "vision/patch_embedding", (1152, 1536)),
        (DENSE, "vision/layers/26/mlp/fc1", (4304, 1152)),
        (DENSE, "vision/layers/0/attention/query_bias", (1152,)),
        (DENSE, "vision/merger/fc1", (4608, 4608)),
        (DENSE, "vision/merger/fc2_bias", (5120,)),
        (DENSE, "dflash2/feature_projection", (5120, 25600)),
        (DENSE, "dflash2/layers/4/attention/context_key", (1024, 5120)),
        (DENSE, "dflash2/layers/4/mlp_conv/base_kernel", (2, 2, 5120)),
        (DENSE, "dflash2/layers/4/attention_conv/kernel_projection", (1280, 5120)),
        (DENSE, "dflash2/candidate_selector/successor_codebook", (248320, 256)),
        (DENSE, "proposal/head", (131072, 5120)),
        (DENSE, "proposal/token_ids", (131072,)),
        (MOE, "text/layers/39/attention/key", (512, 2048)),
        (MOE, "text/layers/38/gdn/value", (4096, 2048)),
        (MOE, "text/layers/0/gdn/dt_bias", (32,)),
        (MOE, "text/layers/0/moe/router", (256, 2048)),
        (MOE, "text/layers/0/moe/shared_score", (1, 2048)),
        (MOE, "text/layers/0/moe/experts/255/up", (512, 2048)),
        (MOE, "mtp/layers/0/moe/experts/0/down", (2048, 512)),
        (MOE, "dflash/feature_projection", (2048, 16384)),
        (MOE, "dflash/layers/5/attention/query", (4096, 2048)),
        (MOE, "dflash/layers/5/mlp/gate", (6144, 2048)),
    ],
    ids=lambda value: "" if isinstance(value, ModelGeometry) else str(value),
)
def test_published_shapes(geometry: ModelGeometry, name: str, shape: tuple[int, ...]) -> None:
    assert by_name(geometry)[name].shape == shape


def test_published_element_count() -> None:
    """The 27B with its MTP layer, as counted from the checkpoint."""
    assert sum(prod(p.shape) for p in parameters(DENSE.without(["dflash2", "proposal"]))) == 27_781_427_952


@pytest.mark.parametrize(
    ("geometry", "name", "inputs"),
    [
        (DENSE, "text/token_embedding", ()),
        (DENSE, "text/output_head", ("text/final_hidden", "mtp/final_hidden", "dflash2/final_hidden")),
        (DENSE.without(["mtp"]), "text/output_head", ("text/final_hidden", "dflash2/final_hidden")),
        (DENSE, "proposal/head", ("mtp/final_hidden", "dflash2/final_hidden")),
        (DENSE, "text/layers/3/attention/gate", ("text/layers/3/mixer_input",)),
        (DENSE, "text/layers/3/attention/output", ("text/layers/3/attention/gated_output",)),
        (DENSE, "text/layers/0/gdn/b_projection", ("text/layers/0/mixer_input",)),
        (DENSE, "text/layers/0/gdn/output", ("text/layers/0/gdn/gated_output",)),
        (DENSE, "text/layers/0/mlp/up", ("text/layers/0/ffn_input",)),
        (DENSE, "text/layers/0/mlp/down", ("text/layers/0/mlp/product",)),
        (DENSE, "mtp/layers/0/mlp/down", ("mtp/layers/0/mlp/product",)),
        (DENSE, "vision/layers/2/attention/key", ("vision/layers/2/attention_input",)),
        (DENSE, "vision/merger/fc2", ("vision/merger/activation",)),
        (DENSE, "dflash2/layers/1/attention/key", ("dflash2/layers/1/query_projection_input",)),
        (DENSE, "dflash2/layers/1/attention/context_key", ("dflash2/context_input",)),
        (DENSE, "dflash2/layers/1/mlp_conv/kernel_projection", ("dflash2/layers/1/mlp_conv_input",)),
        (MOE, "text/layers/1/moe/experts/9/up", ("text/layers/1/ffn_input",)),
        (MOE, "text/layers/1/moe/experts/9/down", ("text/layers/1/moe/experts/9/product",)),
        (MOE, "text/layers/1/moe/shared/down", ("text/layers/1/moe/shared/product",)),
        (MOE, "text/layers/1/moe/router", ("text/layers/1/ffn_input",)),
    ],
    ids=lambda value: "" if isinstance(value, ModelGeometry) else str(value),
)
def test_published_uses(geometry: ModelGeometry, name: str, inputs: tuple[str, ...]) -> None:
    assert by_name(geometry)[name].inputs == inputs


def test_direct_formats() -> None:
    found = by_name(DENSE)
    assert {found[f"text/layers/0/gdn/{name}"].direct for name in ("a_log", "dt_bias")} == {"fp32"}
    assert found["proposal/token_ids"].direct == "int32"
    assert {p.name for p in found.values() if p.direct == "fp32"} == {
        f"text/layers/{i}/gdn/{name}" for i in range(64) if i % 4 != 3 for name in ("a_log", "dt_bias")
    }
    for parameter in found.values():
        assert not (parameter.inputs and parameter.direct), parameter.name
        assert parameter.direct is not None or len(parameter.shape) == 2


@pytest.mark.parametrize("model_id", GEOMETRIES)
def test_groups_have_equal_columns_and_one_component(model_id: str) -> None:
    found = by_name(GEOMETRIES[model_id])
    for group in packing_groups(GEOMETRIES[model_id]):
        members = [found[name] for name in group]
        assert len({member.component for member in members}) == 1
        assert len({member.shape[1:] for member in members}) == 1


@pytest.mark.parametrize(
    ("geometry", "first", "size", "boundaries"),
    [
        (DENSE, "text/layers/3/attention/query", 4, (0, 6144, 7168, 13312, 14336)),
        (MOE, "text/layers/3/attention/query", 4, (0, 4096, 4608, 8704, 9216)),
        (DENSE, "mtp/layers/0/attention/query", 4, (0, 6144, 7168, 13312, 14336)),
        (DENSE, "text/layers/3/attention/query", 2, (0, 6144, 7168)),
        (DENSE, "text/layers/3/attention/gate", 2, (0, 6144, 7168)),
        (DENSE, "text/layers/0/gdn/query", 4, (0, 2048, 4096, 10240, 16384)),
        (MOE, "text/layers/0/gdn/query", 4, (0, 2048, 4096, 8192, 12288)),
        (DENSE, "text/layers/0/gdn/query", 2, (0, 2048, 4096)),
        (DENSE, "text/layers/0/gdn/value", 2, (0, 6144, 12288)),
        (DENSE, "text/layers/0/gdn/a_projection", 2, (0, 48, 96)),
        (MOE, "text/layers/0/gdn/a_projection", 2, (0, 32, 64)),
        (DENSE, "text/layers/0/mlp/gate", 2, (0, 17408, 34816)),
        (MOE, "text/layers/0/moe/shared/gate", 2, (0, 512, 1024)),
        (MOE, "text/layers/0/moe/router", 2, (0, 256, 257)),
        (MOE, "text/layers/0/moe/experts/0/gate", 512, tuple(range(0, 262145, 512))),
        (MOE, "text/layers/0/moe/experts/0/down", 256, tuple(range(0, 524289, 2048))),
        (DENSE, "vision/layers/3/attention/query", 3, (0, 1152, 2304, 3456)),
        (DENSE, "vision/layers/3/attention/query_bias", 3, (0, 1152, 2304, 3456)),
        (DENSE, "dflash2/layers/0/attention/query", 3, (0, 4096, 5120, 6144)),
        (MOE, "dflash/layers/0/attention/query", 3, (0, 4096, 5120, 6144)),
        (DENSE, "dflash2/layers/0/mlp/gate", 2, (0, 17408, 34816)),
        (MOE, "dflash/layers/0/mlp/gate", 2, (0, 6144, 12288)),
    ],
    ids=lambda value: "" if isinstance(value, ModelGeometry | tuple) else str(value),
)
def test_published_row_boundaries(geometry: ModelGeometry, first: str, size: int, boundaries: tuple[int, ...]) -> None:
    found = by_name(geometry)
    group = next(group for group in packing_groups(geometry) if group[0] == first and len(group) == size)
    assert (0, *accumulate(found[name].shape[0] for name in group)) == boundaries


def test_larger_groups_are_tried_first() -> None:
    groups = [group for group in packing_groups(DENSE) if group[0].startswith("text/layers/3/")]
    assert [tuple(name.rsplit("/", 1)[1] for name in group) for group in groups] == [
        ("query", "key", "gate", "value"),
        ("query", "key"),
        ("gate", "value"),
        ("gate", "up"),
    ]
    groups = [group for group in packing_groups(DENSE) if group[0].startswith("text/layers/0/gdn/")]
    assert [tuple(name.rsplit("/", 1)[1] for name in group) for group in groups] == [
        ("query", "key", "value", "z"),
        ("query", "key"),
        ("value", "z"),
        ("a_projection", "b_projection"),
    ]


def test_expert_banks_interleave_gate_and_up() -> None:
    bank = next(group for group in packing_groups(MOE) if group[0] == "text/layers/7/moe/experts/0/gate")
    assert bank[:3] == tuple(f"text/layers/7/moe/experts/{name}" for name in ("0/gate", "0/up", "1/gate"))
