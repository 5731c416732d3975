"""Checkpoint directories, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ninferd.errors import InputError
from ninferd.weights.checkpoint import Checkpoint, canonical_name

NORM = torch.arange(4, dtype=torch.bfloat16)
HEAD = torch.ones(3, 2)


def write(directory: Path, shards: dict[str, dict[str, torch.Tensor]], index: dict[str, Any] | None = None) -> None:
    """A checkpoint with an empty config; with ``index`` also an index file of that weight map."""
    (directory / "config.json").write_text("{}")
    for name, tensors in shards.items():
        save_file(tensors, directory / name)
    if index is not None:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


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
    write(tmp_path, {"model.safetensors": {"model.norm.weight": NORM, "lm_head.weight": HEAD}})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.total_bytes == 4 * 2 + 6 * 4
    assert "norm.weight" in checkpoint
    assert "model.norm.weight" not in checkpoint
    assert torch.equal(checkpoint.take("norm.weight", (4,)), NORM)
    assert torch.equal(checkpoint.take("lm_head.weight", (3, 2)), HEAD)
    checkpoint.require_all_taken()


def test_shards_with_an_index(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"model.norm.weight": NORM}, "b.safetensors": {"lm_head.weight": HEAD}}
    write(tmp_path, shards, {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"})
    checkpoint = Checkpoint(tmp_path)
    assert torch.equal(checkpoint.take("norm.weight", (4,)), NORM)
    assert torch.equal(checkpoint.take("lm_head.weight", (3, 2)), HEAD)
    checkpoint.require_all_taken()


def test_what_is_ignored_needs_no_taker(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"model.visual.x": HEAD, "model.norm.weight": NORM}})
    checkpoint = Checkpoint(tmp_path)
    checkpoint.ignore("visual.")
    checkpoint.take("norm.weight", (4,))
    checkpoint.require_all_taken()
    assert checkpoint.total_bytes == 4 * 2


def test_left_over_tensors(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {f"extra.{i}": HEAD.clone() for i in range(7)}})
    with pytest.raises(InputError, match=r"unexpected tensors: extra\.0, .*extra\.4 and 2 more"):
        Checkpoint(tmp_path).require_all_taken()


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"model.norm.weight": NORM}})
    with pytest.raises(InputError, match=r"tensor lm_head\.weight \[3, 2\] is missing"):
        Checkpoint(tmp_path).take("lm_head.weight", (3, 2))


def test_a_wrong_shape_names_file_and_both_shapes(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"model.norm.weight": NORM}})
    with pytest.raises(InputError, match=r"model\.safetensors: tensor model\.norm\.weight has shape \[4\], .* \[5\]"):
        Checkpoint(tmp_path).take("norm.weight", (5,))


def test_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"model.w": torch.zeros(2, dtype=torch.uint8)}})
    with pytest.raises(InputError, match=r"model\.w has type U8: quantised checkpoints are not available"):
        Checkpoint(tmp_path).take("w", (2,))


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "fp8"}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
    ],
)
def test_a_quantised_config_is_refused_by_name(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, {"model.safetensors": {"model.norm.weight": NORM}})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"quantised checkpoints \(fp8\) are not available in this build"):
        Checkpoint(tmp_path)


def test_two_names_for_one_tensor(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"model.norm.weight": NORM, "language_model.model.norm.weight": NORM + 1}})
    with pytest.raises(InputError, match="is the same as"):
        Checkpoint(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    write(tmp_path, {})
    with pytest.raises(InputError, match=r"holds neither model\.safetensors\.index\.json nor model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"\xff" * 8 + b"{}"], ids=["empty", "zeros", "endless header"])
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: is not a readable safetensors file"):
        Checkpoint(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": {"lm_head.weight": HEAD}})
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InputError, match="is not a readable safetensors file"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"lm_head.weight": "../a.safetensors"}, "must be a plain file name"),
        ({"lm_head.weight": 7}, "must be a plain file name"),
        ({"lm_head.weight": "missing.safetensors"}, r"missing\.safetensors: is not a readable"),
        ({"lm_head.weight": "a.safetensors", "other": "a.safetensors"}, "puts tensor other here"),
        ({}, "weight_map must be an object"),
    ],
    ids=["path", "number", "missing file", "missing tensor", "empty"],
)
def test_a_wrong_index(tmp_path: Path, index: dict[str, Any], problem: str) -> None:
    write(tmp_path, {"a.safetensors": {"lm_head.weight": HEAD}}, index)
    with pytest.raises(InputError, match=problem):
        Checkpoint(tmp_path)


def test_an_index_without_a_weight_map(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="weight_map must be an object"):
        Checkpoint(tmp_path)


def test_a_shard_with_a_tensor_that_the_index_lacks(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": {"x": HEAD, "y": NORM}}, {"x": "a.safetensors"})
    with pytest.raises(InputError, match=r"a\.safetensors: tensor y is not in model\.safetensors\.index\.json"):
        Checkpoint(tmp_path)
