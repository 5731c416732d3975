"""A checkpoint is converted and read back: every matrix is what the formula of its format makes of the checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ninferd.weights.artifact.directory import TensorObject
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.convert.conversion import Output, convert
from ninferd.weights.convert.request import Request, prepare
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.formats.encode import NumpyEncoders
from tests.weights.convert import formulas
from tests.weights.convert.checkpoint import HIDDEN, TEXT, Checkpoint, T

RECIPES = ("bf16", "nvfp4", "groupwise-int", "qwen3.8-nvfp4", "qwen3_6_27b", "qwen3_6_27b_nvfp4", "fp8-importing")


def converted(checkpoint: Checkpoint, directory: Path, recipe: str, *, threads: int = 2) -> ArtifactSource:
    source = checkpoint.write(directory / "model")
    path = directory / "model.ninfer"
    prepared = prepare(Request(source, recipe))
    convert(prepared, Output(path, NumpyEncoders(), threads=threads), lambda *_: None, lambda *_: None)
    return ArtifactSource.open(path)


def decoded(source: ArtifactSource, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    runs = source.matrix(name, shape[0], shape[1])
    return np.concatenate([decode_rows(run.matrix, run.begin, run.end) for run in runs])


def require_formulas(checkpoint: Checkpoint, artifact: Artifact, source: ArtifactSource) -> set[str]:
    """Every parameter of rank 2, against the formula over the parent that it lies in; returns the formats seen."""
    parents: dict[str, list[str]] = {}
    for name, binding in artifact.bindings.items():
        parents.setdefault(binding.parts[0].object_id, []).append(name)
    formats = set()
    for object_id, names in parents.items():
        record = artifact.tensor(object_id)
        if len(record.shape) != 2 or names[0].endswith(("convolution", "position_embedding")):
            continue
        distinct = list({artifact.bindings[name]: name for name in names}.values())
        members = {name: checkpoint.matrix(name) for name in distinct}
        expected = formulas.encoded(np.concatenate(list(members.values())), record.format)
        begin = 0
        for name, values in members.items():
            found = decoded(source, name, values.shape)
            np.testing.assert_array_equal(found, expected[begin : begin + len(values)], err_msg=name)
            begin += len(values)
        formats.add(record.format)
    return formats


@pytest.mark.parametrize("recipe", RECIPES)
def test_dense(tmp_path: Path, recipe: str) -> None:
    checkpoint = Checkpoint()
    source = converted(checkpoint, tmp_path, recipe)
    assert source.components == ("text", "vision", "mtp")
    formats = require_formulas(checkpoint, source.artifact, source)
    assert formats == {
        "bf16": {"bf16"},
        "nvfp4": {"bf16", "nvfp4", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"},
        "groupwise-int": {"bf16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"},
        "qwen3_6_27b": {"bf16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"},
    }.get(recipe, formats)
    assert ("nvfp4" in formats) == ("nvfp4" in recipe or "fp8" in recipe)


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "groupwise-int", "qwen3_6_35b_a3b_nvfp4"])
def test_moe(tmp_path: Path, recipe: str) -> None:
    checkpoint = Checkpoint(is_moe=True)
    source = converted(checkpoint, tmp_path, recipe)
    require_formulas(checkpoint, source.artifact, source)
    bank = source.artifact.bindings["text/layers/0/moe/experts/3/up"].parts[0]
    assert (bank.begin // HIDDEN, bank.end // HIDDEN) == (3 * 256 + 128, 4 * 256)


def test_tied(tmp_path: Path) -> None:
    checkpoint = Checkpoint(is_tied=True)
    source = converted(checkpoint, tmp_path, "nvfp4")
    require_formulas(checkpoint, source.artifact, source)
    assert source.artifact.bindings["text/output_head"] == source.artifact.bindings["text/token_embedding"]
    assert source.config["tie_word_embeddings"] is True


def test_small_parameters(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    checkpoint.tensors[f"{T}layers.0.linear_attn.A_log"] = (
        checkpoint.tensors[f"{T}layers.0.linear_attn.A_log"].float() + 1e-5
    )  # float32 that bfloat16 cannot hold
    source = converted(checkpoint, tmp_path, "nvfp4")
    layer = "text/layers/0/"
    exact = {
        f"{layer}input_norm": checkpoint[f"{T}layers.0.input_layernorm.weight"],
        f"{layer}gdn/a_log": checkpoint[f"{T}layers.0.linear_attn.A_log"],
        f"{layer}gdn/convolution": checkpoint[f"{T}layers.0.linear_attn.conv1d.weight"][:, 0].T,
        "mtp/hidden_norm": checkpoint["mtp.pre_fc_norm_hidden.weight"],
        "vision/layers/0/attention/key_bias": checkpoint["model.visual.blocks.0.attn.qkv.bias"][64:128],
        "vision/position_embedding": checkpoint["model.visual.pos_embed.weight"],
    }
    for name, values in exact.items():
        np.testing.assert_array_equal(source.array(name, values.shape), values, err_msg=name)


def test_configuration_survives(tmp_path: Path) -> None:
    config = converted(Checkpoint(), tmp_path, "nvfp4").config
    text = config.get("text_config", config)
    for key in ("hidden_size", "num_hidden_layers", "layer_types", "rms_norm_eps", "linear_num_value_heads"):
        assert text[key] == TEXT[key]
    assert text["mtp_num_hidden_layers"] == 1


def test_the_number_of_threads_does_not_show(tmp_path: Path) -> None:
    payloads = []
    for threads in (1, 3):
        source = converted(Checkpoint(), tmp_path / str(threads), "nvfp4", threads=threads)
        payloads.append(source.path.read_bytes()[32:])
    assert payloads[0] == payloads[1]


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of many blocks, cut in the middle of fused parents, are the same as whole ones."""
    monkeypatch.setattr("ninferd.weights.convert.blocks.BLOCK_ELEMENTS", 1)
    checkpoint = Checkpoint()
    source = converted(checkpoint, tmp_path, "nvfp4")
    require_formulas(checkpoint, source.artifact, source)


def test_fused_parents_have_one_divisor(tmp_path: Path) -> None:
    artifact = converted(Checkpoint(), tmp_path, "nvfp4").artifact
    objects = [found for found in artifact.objects.values() if isinstance(found, TensorObject)]
    shapes = [found.shape for found in objects if found.format == "nvfp4"]
    assert shapes == [(768, 128), (512, 128), (768, 128), (512, 128), (128, 256), (128, 256), (128, 256), (128, 256)]
