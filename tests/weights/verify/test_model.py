"""Frontend files against the geometry of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninferd.weights.locate import artifact_path
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.stored import RowRun
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.model import check_frontend

TOKENS = 4096  # of the tokenizer of the embedded model
GEOMETRY = replace(GEOMETRIES["qwen3.8-27b"].without({"mtp"}), drafts=(), proposal_rows=None)


@dataclass
class Source:
    """A model of which only the frontend files and the ids of the draft head can be asked for."""

    files: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    path: Path = Path("model.ninfer")
    config: dict[str, Any] = field(default_factory=lambda: {"eos_token_id": 7})

    def resource(self, name: str) -> bytes | None:
        if name in self.files:
            content = self.files[name]
            return content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        if name == "chat_template.jinja":
            return b"{{ messages }}"
        return (artifact_path("embedded:ninfer-tiny-bf16") / name).read_bytes() if name == "tokenizer.json" else None

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        raise AssertionError(parameter)

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        assert (parameter, shape) == ("proposal/token_ids", (len(self.ids),))
        return np.array(self.ids, np.int32)

    def has(self, parameter: str) -> bool:
        raise AssertionError(parameter)

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        raise AssertionError(parameter)

    def require_no_others(self, known: frozenset[str]) -> None:
        raise AssertionError(known)


def errors(source: Source, geometry: ModelGeometry = GEOMETRY) -> list[str]:
    findings = Findings()
    check_frontend(source, geometry, findings)
    assert findings.warnings == []
    return findings.errors


def test_ids_of_the_draft_head() -> None:
    geometry = replace(GEOMETRY, proposal_rows=3)
    assert errors(Source(ids=(TOKENS - 1, 0, 7)), geometry) == []


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ((3, 0, 3), "2 are different, from 0 to 3"),
        ((3, 0, TOKENS), f"3 are different, from 0 to {TOKENS}"),
        ((3, 0, -1), "3 are different, from -1 to 3"),
    ],
    ids=["twice", "beyond", "negative"],
)
def test_wrong_ids_of_the_draft_head(ids: tuple[int, ...], found: str) -> None:
    assert errors(Source(ids=ids), replace(GEOMETRY, proposal_rows=3)) == [
        f"model.ninfer: parameter proposal/token_ids: its 3 ids must be different and of 0 to {TOKENS - 1}; {found}"
    ]


@pytest.mark.parametrize("eos", [None, 4, [4, 5]], ids=["none", "one", "two"])
def test_stop_ids(eos: object) -> None:
    assert errors(Source({"generation_config.json": {"eos_token_id": eos}})) == []


def found(source: Source) -> tuple[list[str], list[str]]:
    findings = Findings()
    check_frontend(source, GEOMETRY, findings)
    return findings.errors, findings.warnings


@pytest.mark.parametrize("config", [{"eos_token_id": [4, 5]}, {"text_config": {"eos_token_id": 4}}])
@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": None}, {"eos_token_id": []}], ids=repr)
def test_stop_ids_of_the_configuration(config: dict[str, Any], generation: Any) -> None:
    assert found(Source({"generation_config.json": generation}, config=config)) == ([], [])


@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": None}, {"eos_token_id": []}], ids=repr)
def test_a_model_without_a_stop_id_cannot_be_served(generation: Any) -> None:
    warning = (
        "model.ninfer: resource generation_config.json: neither it nor the configuration names an eos_token_id, with "
        "which answers end; the model can be loaded but not be talked to"
    )
    source = Source({"generation_config.json": generation}, config={"text_config": {}})
    assert found(source) == ([], [warning])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "x"}}, []),
        ({}, ["is missing; the model can be loaded but not be talked to without template.file"]),
        (
            {"tokenizer_config.json": {"chat_template": None}},
            ["is missing; the model can be loaded but not be talked to without template.file"],
        ),
    ],
    ids=["in tokenizer_config", "nowhere", "null"],
)
def test_a_model_without_a_template(files: dict[str, Any], expected: list[str]) -> None:
    warnings = [f"model.ninfer: resource chat_template.jinja: {line}" for line in expected]
    assert found(Source({"chat_template.jinja": None} | files)) == ([], warnings)


def test_a_template_that_is_not_utf8() -> None:
    line = "model.ninfer: resource chat_template.jinja: is not UTF-8: invalid start byte at byte 2"
    assert found(Source({"chat_template.jinja": b"{{\xff"})) == ([line], [])


@pytest.mark.parametrize("eos", [TOKENS, -1, "4", True, 4.0], ids=repr)
def test_wrong_stop_ids(eos: object) -> None:
    assert errors(Source({"generation_config.json": {"eos_token_id": [3, eos]}})) == [
        f"model.ninfer: resource generation_config.json: eos_token_id {eos!r} is none of the {TOKENS} token ids"
    ]


@pytest.mark.parametrize("name", ["preprocessor_config.json", "video_preprocessor_config.json"])
def test_preprocessors(name: str) -> None:
    sizes = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5]}
    assert errors(Source({name: sizes})) == []
    for key in ("patch_size", "temporal_patch_size", "merge_size"):
        assert errors(Source({name: sizes | {key: 14}})) == [
            f"model.ninfer: resource {name}: {key} must be {sizes[key]} as in the vision tower, found 14"
        ]
    assert errors(Source({name: sizes | {"patch_size": 14}}), GEOMETRY.without({"vision"})) == []
