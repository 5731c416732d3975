"""Checkpoints that are quantised already: what the recipe wants is kept bit for bit, the rest is encoded again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninferd.weights.artifact.directory import TensorObject, Use
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.convert.request import Request, prepare
from ninferd.weights.formats.swizzle import unswizzled
from ninferd.weights.verify.verification import verify_model
from tests.weights.convert import formulas
from tests.weights.convert.checkpoint import HEAD_DIM, HEADS, HIDDEN, KEY, VALUE, WIDTH, Checkpoint, T
from tests.weights.convert.quantised import Bytes, compressed_tensors, fp8_channel, fp8_codes, modelopt
from tests.weights.convert.test_round_trip import converted, decoded

MLP = "text/layers/0/mlp/"
HF_MLP = f"{T}layers.0.mlp."


def rows_of(artifact: Artifact, parameter: str, columns: int) -> tuple[TensorObject, int, int]:
    (part,) = artifact.bindings[parameter].parts
    return artifact.tensor(part.object_id), part.begin // columns, part.end // columns


def plane(artifact: Artifact, parameter: str, columns: int, name: str) -> NDArray[np.generic]:
    """Codes or scales of a parameter's rows, nvfp4's scales in natural order."""
    record, begin, end = rows_of(artifact, parameter, columns)
    values = artifact.matrix(record.id).planes[name].array()
    if name == "scales" and record.format == "nvfp4":
        values = unswizzled(values)
    return values[begin:end]


def divisors(artifact: Artifact, parameter: str, columns: int) -> tuple[float, ...]:
    return artifact.matrix(rows_of(artifact, parameter, columns)[0].id).divisors


def use_of(artifact: Artifact, parameter: str) -> Use:
    return next(use for use in artifact.uses if use.parameter == parameter)


def activation_divisor(artifact: Artifact, parameter: str) -> float:
    binding = use_of(artifact, parameter).auxiliaries["activation_input_divisor"]
    return float(artifact.matrix(binding.parts[0].object_id).planes["values"].array()[0, 0])


def test_compressed_tensors(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    gate = compressed_tensors(checkpoint, f"{HF_MLP}gate_proj", 7000.5, 300.25)
    up = compressed_tensors(checkpoint, f"{HF_MLP}up_proj", 7000.5, 310.75)
    down = compressed_tensors(checkpoint, f"{HF_MLP}down_proj", 5000.0)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    for name, matrix, columns in (("gate", gate, HIDDEN), ("up", up, HIDDEN), ("down", down, WIDTH)):
        parameter = f"{MLP}{name}"
        np.testing.assert_array_equal(plane(artifact, parameter, columns, "codes"), matrix.codes)
        np.testing.assert_array_equal(plane(artifact, parameter, columns, "scales"), matrix.scales)
        assert divisors(artifact, parameter, columns) == (matrix.divisor,)
    assert rows_of(artifact, f"{MLP}gate", HIDDEN)[0] is rows_of(artifact, f"{MLP}up", HIDDEN)[0]
    assert use_of(artifact, f"{MLP}gate").activation_policy == "AllowA4"
    assert activation_divisor(artifact, f"{MLP}gate") == 300.25
    assert activation_divisor(artifact, f"{MLP}up") == 310.75
    assert use_of(artifact, f"{MLP}down").activation_policy == "A16Only"
    assert use_of(artifact, f"{MLP}down").auxiliaries == {}
    assert use_of(artifact, "text/layers/0/gdn/z").activation_policy == "A16Only"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -300.0])
def test_a_calibration_without_sense_is_left_out_and_told(tmp_path: Path, value: float) -> None:
    checkpoint = Checkpoint()
    compressed_tensors(checkpoint, f"{HF_MLP}down_proj", 5000.0, value)
    line = (
        f"{tmp_path}/model/model.safetensors: tensor {HF_MLP}down_proj.input_global_scale is {value}, which no "
        "activations can be scaled by: they stay in 16 bits"
    )
    use = use_of(converted(checkpoint, tmp_path, "nvfp4").artifact, f"{MLP}down")
    assert (use.activation_policy, use.auxiliaries) == ("A16Only", {})
    report = json.loads((tmp_path / "model.ninfer.conversion.json").read_text())
    assert report["notes"].count(line) == 1
    findings = verify_model(tmp_path / "model", with_values=False, on_progress=lambda _done, _total: None)
    assert findings.warnings.count(line) == 1


def test_different_divisors_stay_in_objects_of_their_own(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    for name, divisor in (("gate_proj", 7000.0), ("up_proj", 6000.0)):
        compressed_tensors(checkpoint, f"{HF_MLP}{name}", divisor, 300.0)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    assert artifact.bindings[f"{MLP}gate"].is_whole
    assert divisors(artifact, f"{MLP}gate", HIDDEN) == (7000.0,)
    assert divisors(artifact, f"{MLP}up", HIDDEN) == (6000.0,)


def test_modelopt(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    matrix = modelopt(checkpoint, f"{HF_MLP}down_proj", 0.00037, 0.0021)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    np.testing.assert_array_equal(plane(artifact, f"{MLP}down", WIDTH, "codes"), matrix.codes)
    np.testing.assert_array_equal(plane(artifact, f"{MLP}down", WIDTH, "scales"), matrix.scales)
    assert divisors(artifact, f"{MLP}down", WIDTH) == (matrix.divisor,)
    assert activation_divisor(artifact, f"{MLP}down") == np.float32(1) / np.float32(0.0021)


def test_query_and_gate_are_cut_out_of_one_quantised_tensor(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    matrix = compressed_tensors(checkpoint, f"{T}layers.1.self_attn.q_proj", 4000.0, 200.0)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    for index, name in enumerate(("query", "gate")):
        for part, values in (("codes", matrix.codes), ("scales", matrix.scales)):
            heads = values.reshape(HEADS, 2, HEAD_DIM, -1)[:, index].reshape(HEADS * HEAD_DIM, -1)
            np.testing.assert_array_equal(plane(artifact, f"text/layers/1/attention/{name}", HIDDEN, part), heads)
        assert activation_divisor(artifact, f"text/layers/1/attention/{name}") == 200.0


def test_rows_of_a_fused_gdn_tensor(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    matrix = compressed_tensors(checkpoint, f"{T}layers.0.linear_attn.in_proj_qkv", 4000.0, 200.0)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    bounds = {"query": (0, KEY), "key": (KEY, 2 * KEY), "value": (2 * KEY, 2 * KEY + VALUE)}
    for name, (begin, end) in bounds.items():
        parameter = f"text/layers/0/gdn/{name}"
        np.testing.assert_array_equal(plane(artifact, parameter, HIDDEN, "codes"), matrix.codes[begin:end])
    query, value = (rows_of(artifact, f"text/layers/0/gdn/{name}", HIDDEN)[0] for name in ("query", "value"))
    assert query.shape == (2 * KEY, HIDDEN)  # z is encoded here, so the pair of query and key is what can be packed
    assert value.shape == (VALUE, HIDDEN)


def test_fp8_rows(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    codes, words = fp8_channel(checkpoint, f"{T}layers.0.linear_attn.out_proj")
    artifact = converted(checkpoint, tmp_path, "qwen3.8-nvfp4").artifact
    parameter = "text/layers/0/gdn/output"
    np.testing.assert_array_equal(plane(artifact, parameter, VALUE, "codes"), codes)
    np.testing.assert_array_equal(plane(artifact, parameter, VALUE, "scales"), words)
    assert use_of(artifact, parameter).activation_policy == "AllowA8"


def test_the_scale_of_an_fp8_tensor_becomes_that_of_its_rows(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    codes = fp8_codes(checkpoint, f"{T}layers.0.linear_attn.out_proj")
    checkpoint.tensors[f"{T}layers.0.linear_attn.out_proj.weight_scale"] = torch.tensor(0.00123)
    artifact = converted(checkpoint, tmp_path, "qwen3.8-nvfp4").artifact
    parameter = "text/layers/0/gdn/output"
    np.testing.assert_array_equal(plane(artifact, parameter, VALUE, "codes"), codes)
    word = torch.tensor([0.00123]).bfloat16().view(torch.uint16).item()
    assert set(plane(artifact, parameter, VALUE, "scales").tolist()) == {word}


def fp8_blocks(checkpoint: Checkpoint, prefix: str) -> tuple[Bytes, NDArray[np.float32]]:
    codes = fp8_codes(checkpoint, prefix)
    scales = torch.rand(-(-codes.shape[0] // 128), -(-codes.shape[1] // 128)) * 0.01
    checkpoint.tensors[f"{prefix}.weight_scale_inv"] = scales
    return codes, scales.numpy()


@pytest.mark.parametrize("recipe", ["nvfp4", "qwen3.8-nvfp4"])
def test_fp8_in_blocks_is_decoded_and_encoded_again(tmp_path: Path, recipe: str) -> None:
    checkpoint = Checkpoint()
    codes, scales = fp8_blocks(checkpoint, f"{T}layers.0.linear_attn.out_proj")
    source = converted(checkpoint, tmp_path, recipe)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    values = values * np.repeat(np.repeat(scales, 128, 0), 128, 1)
    if recipe == "qwen3.8-nvfp4":
        values = torch.from_numpy(values).bfloat16().float().numpy()  # the encoder of FP8 rows starts from bfloat16
    format = "nvfp4" if recipe == "nvfp4" else "fp8_e4m3fn_row_bf16"
    found = decoded(source, "text/layers/0/gdn/output", (HIDDEN, VALUE))
    np.testing.assert_array_equal(found, formulas.encoded(values, format))


def test_nvfp4_that_the_recipe_does_not_want_is_encoded_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    matrix = compressed_tensors(checkpoint, "mtp.layers.0.mlp.down_proj", 4000.0, 200.0)
    source = converted(checkpoint, tmp_path, "nvfp4")
    values = nvfp4_values(matrix.codes, matrix.scales, 4000.0)
    found = decoded(source, "mtp/layers/0/mlp/down", (HIDDEN, WIDTH))
    np.testing.assert_array_equal(found, formulas.encoded(values, "q8_g32_fp16"))


def nvfp4_values(codes: Bytes, scales: Bytes, divisor: float) -> NDArray[np.float32]:
    e2m1 = np.concatenate([formulas.E2M1, -formulas.E2M1])
    unpacked = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    scale = torch.from_numpy(scales).view(torch.float8_e4m3fn).double().numpy()
    product = (e2m1[unpacked] * np.repeat(scale, 16, axis=1)).astype(np.float32)
    values: NDArray[np.float32] = product / np.float32(divisor)
    return values


def test_a_base_model_serves_what_is_quantised_in_another_format(tmp_path: Path) -> None:
    checkpoint, base = Checkpoint(), Checkpoint()
    compressed_tensors(checkpoint, "mtp.layers.0.mlp.down_proj", 4000.0, 200.0)
    kept = compressed_tensors(checkpoint, f"{HF_MLP}down_proj", 5000.0)
    base.tensors["mtp.layers.0.mlp.up_proj.weight"] *= 0  # plain in both: the model's own is taken
    request = Request(checkpoint.write(tmp_path / "model"), "nvfp4", base=base.write(tmp_path / "base"))
    prepared = prepare(request)
    origins = {
        name: runs[0].matrix.path.parent.name
        for name, runs in prepared.runs.items()
        if name in ("mtp/layers/0/mlp/down", "mtp/layers/0/mlp/up", f"{MLP}down")
    }
    assert origins == {"mtp/layers/0/mlp/down": "base", "mtp/layers/0/mlp/up": "model", f"{MLP}down": "model"}
    assert kept.divisor == 5000.0


def test_experts_of_different_divisors_share_a_bank(tmp_path: Path) -> None:
    checkpoint = Checkpoint(is_moe=True)
    prefix = f"{T}layers.0.mlp.experts."
    gate_up = checkpoint.tensors.pop(f"{prefix}gate_up_proj")
    down = checkpoint.tensors.pop(f"{prefix}down_proj")
    matrices = {}
    for expert in range(4):
        parts = {"gate": gate_up[expert, :128], "up": gate_up[expert, 128:], "down": down[expert]}
        for index, (name, values) in enumerate(parts.items()):
            checkpoint.tensors[f"{prefix}{expert}.{name}_proj.weight"] = values
            divisor = 4000.0 + 10 * expert + index
            matrices[expert, name] = compressed_tensors(checkpoint, f"{prefix}{expert}.{name}_proj", divisor, 100.0)
    artifact = converted(checkpoint, tmp_path, "nvfp4").artifact
    for (expert, name), matrix in matrices.items():
        parameter = f"text/layers/0/moe/experts/{expert}/{name}"
        record, begin, _ = rows_of(artifact, parameter, 128)
        np.testing.assert_array_equal(plane(artifact, parameter, 128, "codes"), matrix.codes)
        np.testing.assert_array_equal(plane(artifact, parameter, 128, "scales"), matrix.scales)
        assert record.divisors == (4 if name == "down" else 8)
        assert divisors(artifact, parameter, 128)[begin // 128] == matrix.divisor
        assert use_of(artifact, parameter).activation_policy == "AllowA4"
