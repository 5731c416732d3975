"""Parameters and the tensors of checkpoints: against transformers' own names and shapes, and the published counts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.huggingface_names import (
    SourceTensor,
    draft_sources,
    mtp_sources,
    text_sources,
    vision_sources,
)
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.parameters.registry import parameters
from tests.support.checkpoints import MOE, TEXT, build_transformers_model, nested


def sources(geometry: ModelGeometry) -> Iterator[tuple[str, tuple[SourceTensor, ...]]]:
    yield from text_sources(geometry.text)
    if geometry.has_mtp:
        yield from mtp_sources(geometry.text)
    if geometry.vision is not None:
        yield from vision_sources(geometry.vision, geometry.text.hidden_size)
    for draft in geometry.drafts:
        yield from draft_sources(draft)


@pytest.mark.parametrize("model_id", GEOMETRIES)
def test_every_parameter_of_a_checkpoint_has_a_tensor_of_its_size(model_id: str) -> None:
    geometry = GEOMETRIES[model_id]
    found = dict(sources(geometry))
    expected = parameters(geometry.without(["proposal"]))
    assert found.keys() == {parameter.name for parameter in expected}
    for parameter in expected:
        for source in found[parameter.name]:
            rows = sum(end - begin for begin, end in source.runs)
            if len(parameter.shape) == 2:
                shape = (source.columns, rows) if source.is_transposed else (rows, source.columns)
                assert shape == parameter.shape
            assert rows * source.columns == prod(parameter.shape)


@pytest.mark.parametrize("model_id", GEOMETRIES)
@pytest.mark.parametrize("alternative", [0, -1])
def test_every_row_of_a_tensor_belongs_to_one_parameter(model_id: str, alternative: int) -> None:
    runs: dict[str, list[tuple[int, int]]] = {}
    rows: dict[str, int] = {}
    for name, alternatives in sources(GEOMETRIES[model_id]):
        source = alternatives[alternative]
        if "/context_" not in name and not name.startswith("dflash"):
            runs.setdefault(source.name, []).extend(source.runs)
            rows[source.name] = source.rows
    for name, covered in runs.items():
        ordered = sorted(covered)
        assert [begin for begin, _ in ordered] == [0, *(end for _, end in ordered[:-1])], name
        assert ordered[-1][1] == rows[name]


@pytest.mark.parametrize(
    ("model_id", "text", "vision", "mtp", "draft"),
    [("qwen3.8-27b", 851, 333, 15, 81), ("qwen3.6-27b", 851, 333, 15, 58), ("qwen3.6-35b-a3b", 693, 333, 19, 69)],
)
def test_published_tensor_counts(model_id: str, text: int, vision: int, mtp: int, draft: int) -> None:
    geometry = GEOMETRIES[model_id]
    assert geometry.vision is not None
    counts = [
        len({alternatives[0].name for _, alternatives in named})
        for named in (
            text_sources(geometry.text),
            vision_sources(geometry.vision, geometry.text.hidden_size),
            mtp_sources(geometry.text),
            draft_sources(geometry.drafts[0]),
        )
    ]
    assert counts == [text, vision, mtp, draft]


@pytest.mark.parametrize(
    ("model_id", "elements"),
    [("qwen3.8-27b", 27_781_427_952), ("qwen3.6-35b-a3b", 35_951_822_704)],
)
def test_published_element_counts(model_id: str, elements: int) -> None:
    shapes = {s[0].name: s[0].shape for _, s in sources(GEOMETRIES[model_id].without(["dflash", "dflash2"]))}
    assert sum(prod(shape) for shape in shapes.values()) == elements


@pytest.mark.parametrize(
    ("model_id", "elements"),
    [("qwen3.8-27b", 1_924_404_480), ("qwen3.6-27b", 1_730_213_120), ("qwen3.6-35b-a3b", 385_906_176)],
)
def test_published_element_counts_of_drafters(model_id: str, elements: int) -> None:
    shapes = {s[0].name: s[0].shape for _, s in draft_sources(GEOMETRIES[model_id].drafts[0])}
    assert sum(prod(shape) for shape in shapes.values()) == elements


@pytest.mark.parametrize("config", [TEXT, MOE, nested(TEXT)], ids=["dense", "moe", "with vision"])
def test_names_and_shapes_are_those_of_transformers(config: dict[str, Any]) -> None:
    config = {key: value for key, value in config.items() if key != "architectures"}
    geometry = model_geometry(component_configs(config, "config.json"), "config.json")
    found = {alternatives[0].name: alternatives[0].shape for _, alternatives in sources(geometry)}
    state = build_transformers_model(config).state_dict()
    expected = {}
    for name, tensor in state.items():
        canonical = name.removeprefix("model.language_model.").removeprefix("model.")
        expected[canonical] = tuple(tensor.shape)
    assert found == expected


def test_queries_and_gates_alternate_per_head() -> None:
    named = dict(text_sources(GEOMETRIES["qwen3.8-27b"].text))
    query, gate = named["text/layers/3/attention/query"][0], named["text/layers/3/attention/gate"][0]
    assert query.name == gate.name == "layers.3.self_attn.q_proj.weight"
    assert query.runs[:2] == ((0, 256), (512, 768))
    assert gate.runs[:2] == ((256, 512), (768, 1024))
    assert gate.runs[-1] == (12032, 12288)


def test_experts_are_stacked_or_single() -> None:
    named = dict(text_sources(GEOMETRIES["qwen3.6-35b-a3b"].text))
    stacked, single = named["text/layers/2/moe/experts/7/up"]
    assert (stacked.name, stacked.shape) == ("layers.2.mlp.experts.gate_up_proj", (256, 1024, 2048))
    assert stacked.runs == ((7 * 1024 + 512, 8 * 1024),)
    assert (single.name, single.shape) == ("layers.2.mlp.experts.7.up_proj.weight", (512, 2048))
    stacked, single = named["text/layers/2/moe/experts/7/down"]
    assert (stacked.shape, stacked.runs) == ((256, 2048, 512), ((7 * 2048, 8 * 2048),))
    assert single.name == "layers.2.mlp.experts.7.down_proj.weight"
