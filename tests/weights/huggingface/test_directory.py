"""Checkpoint directories, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ninferd.errors import InputError
from ninferd.weights.huggingface.directory import canonical_name, read_directory
from tests.weights.huggingface.files import write_directory

NORM = torch.arange(4, dtype=torch.bfloat16)
HEAD = torch.ones(3, 2)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("model.language_model.layers.0.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight"),
        ("language_model.model.norm.weight", "norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.embed_tokens.weight", "embed_tokens.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.visual.pos_embed.weight", "visual.pos_embed.weight"),
        ("visual.pos_embed.weight", "visual.pos_embed.weight"),
        ("mtp.fc.weight", "mtp.fc.weight"),
    ],
)
def test_prefixes_are_stripped(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


def test_a_single_file(tmp_path: Path) -> None:
    write_directory(
        tmp_path, {"model.safetensors": {"model.norm.weight": NORM, "lm_head.weight": HEAD}}, config={"a": 1}
    )
    directory = read_directory(tmp_path)
    assert directory.config == {"a": 1}
    assert directory.tensors.keys() == {"norm.weight", "lm_head.weight"}
    norm = directory.tensors["norm.weight"]
    assert (norm.name, norm.dtype, norm.shape) == ("model.norm.weight", "BF16", (4,))


def test_shards_with_an_index(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"model.norm.weight": NORM}, "b.safetensors": {"lm_head.weight": HEAD}}
    write_directory(tmp_path, shards, {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"})
    tensors = read_directory(tmp_path).tensors
    assert {name: tensor.span.path.name for name, tensor in tensors.items()} == {
        "norm.weight": "a.safetensors",
        "lm_head.weight": "b.safetensors",
    }


def test_shards_behind_links(tmp_path: Path) -> None:
    """As a download cache has them."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    write_directory(blobs, {"0123": {"model.norm.weight": NORM}})
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").symlink_to(blobs / "config.json")
    (snapshot / "model.safetensors").symlink_to(blobs / "0123")
    assert read_directory(snapshot).tensors.keys() == {"norm.weight"}


def test_two_names_for_one_tensor(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": NORM, "language_model.model.norm.weight": NORM + 1}
    write_directory(tmp_path, {"model.safetensors": tensors})
    with pytest.raises(
        InputError, match=r"tensor .*norm\.weight is the same as .*norm\.weight in .*model\.safetensors"
    ):
        read_directory(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    write_directory(tmp_path, {})
    with pytest.raises(InputError, match=r"holds neither model\.safetensors\.index\.json nor model\.safetensors"):
        read_directory(tmp_path)


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: cannot be read: No such file"):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"lm_head.weight": "../a.safetensors"}, "must be a plain file name"),
        ({"lm_head.weight": ".."}, "must be a plain file name"),
        ({"lm_head.weight": ""}, "must be a plain file name"),
        ({"lm_head.weight": "a\0b"}, "must be a plain file name"),
        ({"lm_head.weight": "x" * 300}, "must be a plain file name"),
        ({"lm_head.weight": 7}, "of tensor lm_head.weight must be a plain file name, not 7"),
        ({"lm_head.weight": "missing.safetensors"}, r"missing\.safetensors: cannot be read: No such file"),
        ({"lm_head.weight": "a.safetensors", "other": "a.safetensors"}, "puts tensor other here, but it is not"),
        ({}, "weight_map must be an object"),
    ],
    ids=["path", "parent", "empty name", "NUL", "long", "number", "missing file", "missing tensor", "empty"],
)
def test_a_wrong_index(tmp_path: Path, index: dict[str, Any], problem: str) -> None:
    write_directory(tmp_path, {"a.safetensors": {"lm_head.weight": HEAD}}, index)
    with pytest.raises(InputError, match=problem):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "weight_map must be an object"),
        ('{"weight_map": {"a": "b", "a": "c"}}', "names the member 'a' twice"),
        (json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(10_001)}}), "more than 10000 files"),
    ],
    ids=["no map", "a tensor twice", "shards"],
)
def test_an_unusable_index(tmp_path: Path, content: str, problem: str) -> None:
    write_directory(tmp_path, {})
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=rf"model\.safetensors\.index\.json: .*{problem}"):
        read_directory(tmp_path)


def test_a_shard_with_a_tensor_that_the_index_lacks(tmp_path: Path) -> None:
    write_directory(tmp_path, {"a.safetensors": {"x": HEAD, "y": NORM}}, {"x": "a.safetensors"})
    with pytest.raises(InputError, match=r"a\.safetensors: tensor y is not in model\.safetensors\.index\.json"):
        read_directory(tmp_path)
