"""Artifacts under parameter names: bindings to rows and values, and what is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.stored import joined
from tests.weights.raw_artifact import CONFIG, RawArtifact, bf16, nvfp4, old_artifact

GDN, ATTENTION = "text/layers/0/gdn/", "text/layers/1/attention/"
CELLS = 128 * 64


def opened(tmp_path: Path, raw: RawArtifact) -> ArtifactSource:
    return ArtifactSource.open(raw.write(tmp_path / "m.ninfer"))


def fused(parent_rows: int = 256) -> RawArtifact:
    """One parent of NVFP4 rows, and a BF16 matrix."""
    raw = RawArtifact()
    raw.tensor("parent", [parent_rows, 64], "nvfp4", nvfp4(parent_rows, 64, divisor=2.5))
    raw.tensor("plain", [128, 64], "bf16", bf16(np.arange(CELLS).reshape(128, 64) % 128))
    return raw


# Matrices.


def test_parts_of_a_fused_parent_are_its_rows(tmp_path: Path) -> None:
    raw = fused()
    raw.bind(f"{ATTENTION}query", ("parent", 0, CELLS))
    raw.bind(f"{ATTENTION}key", ("parent", CELLS, 2 * CELLS))
    source = opened(tmp_path, raw)
    (query,) = source.matrix(f"{ATTENTION}query", 128, 64)
    (key,) = source.matrix(f"{ATTENTION}key", 128, 64)
    assert (query.begin, query.end, key.begin, key.end) == (0, 128, 128, 256)
    assert (query.matrix.format, query.matrix.divisors, query.matrix.is_swizzled) == ("nvfp4", (2.5,), True)
    (both,) = joined((query, key))
    assert (both.begin, both.end) == (0, 256)


def test_a_matrix_of_several_objects_in_any_order(tmp_path: Path) -> None:
    raw = fused()
    raw.bind("text/layers/0/mlp/gate", ("plain", 64 * 64, CELLS), ("parent", 0, 64 * 64))
    runs = opened(tmp_path, raw).matrix("text/layers/0/mlp/gate", 128, 64)
    assert [(run.matrix.name, run.begin, run.end) for run in runs] == [("plain", 64, 128), ("parent", 0, 64)]


def test_neighbouring_parts_of_one_object_are_one_run(tmp_path: Path) -> None:
    raw = fused()
    raw.bind(f"{GDN}z", ("parent", 0, 64), ("parent", 64, CELLS))
    assert len(opened(tmp_path, raw).matrix(f"{GDN}z", 128, 64)) == 1


def test_a_whole_object(tmp_path: Path) -> None:
    raw = fused()
    raw.bind_whole(f"{GDN}query", "plain")
    source = opened(tmp_path, raw)
    (run,) = source.matrix(f"{GDN}query", 128, 64)
    assert (run.matrix.format, run.begin, run.end) == ("bf16", 0, 128)
    assert source.has(f"{GDN}query")
    assert not source.has(f"{GDN}key")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], r"m\.ninfer: parameter text/layers/0/gdn/query \[128, 64\] is missing"),
        ([("parent", 0, CELLS - 64)], r"its parts have 8128 elements, expected 8192 for \[128, 64\]"),
        ([("parent", 0, 2 * CELLS)], r"its parts have 16384 elements, expected 8192"),
        (
            [("parent", 0, 32), ("parent", 32, CELLS)],
            r"elements 0 to 32 of object parent are not whole rows of 64; parts of rows are not supported",
        ),
        ([("parent", 16, CELLS + 16)], r"elements 16 to 8208 of object parent are not whole rows"),
        ([("wide", 0, CELLS)], r"object wide has rows of 128 columns, expected 64"),
        ([("ids", 0, CELLS)], r"is stored as int32; a matrix of weights is needed"),
        ([("ggml", 0, CELLS)], r"object ggml: format gguf_q4_k is ggml blocks of another engine"),
        ([("exotic", 0, CELLS)], r"object exotic: format 'q9' is unknown"),
        ([("cut", 0, CELLS)], r"object cut: expected 16384 encoded bytes for bf16 \[128, 64\], the directory says 100"),
    ],
    ids=["missing", "too few", "too many", "half a row", "shifted", "columns", "ids", "gguf", "unknown", "size"],
)
def test_bindings_that_do_not_give_the_matrix(tmp_path: Path, parts: list[tuple[str, int, int]], message: str) -> None:
    raw = fused()
    raw.tensor("wide", [64, 128], "bf16", bytes(2 * CELLS))
    raw.tensor("ids", [128, 64], "int32", bytes(4 * CELLS))
    raw.tensor("ggml", [128, 64], "gguf_q4_k", bytes(100), "gguf_blocks_v1")
    raw.tensor("exotic", [128, 64], "q9", bytes(100), "contiguous_le_v1")
    raw.tensor("cut", [128, 64], "bf16", bytes(100))
    if parts:
        raw.bind(f"{GDN}query", *parts)
    source = opened(tmp_path, raw)
    with pytest.raises(InputError, match=message):
        source.matrix(f"{GDN}query", 128, 64)


def test_a_whole_object_of_another_shape(tmp_path: Path) -> None:
    raw = fused()
    raw.tensor("tall", [256, 32], "bf16", bytes(2 * CELLS))
    raw.bind_whole(f"{GDN}query", "tall")
    with pytest.raises(InputError, match=r"gdn/query: object tall has shape \[256, 32\], expected \[128, 64\]"):
        opened(tmp_path, raw).matrix(f"{GDN}query", 128, 64)


# Uses.


def with_divisor(value: float, shape: list[int] | None = None, format: str = "fp32") -> RawArtifact:
    raw = fused()
    raw.bind(f"{GDN}query", ("parent", 0, CELLS))
    raw.bind(f"{GDN}key", ("parent", CELLS, 2 * CELLS))
    data = struct.pack("<f", value) if format == "fp32" else bf16([value])
    raw.tensor("d_x", shape or [], format, data)
    raw.tensor("same", [], "fp32", struct.pack("<f", value))
    raw.use(f"{GDN}query", "text/layers/0/mixer_input", activation_input_divisor="d_x")
    return raw


def test_divisors_of_activations_come_with_the_matrix(tmp_path: Path) -> None:
    raw = with_divisor(96.5)
    raw.use(f"{GDN}key", "text/layers/0/mixer_input", activation_input_divisor="same")
    source = opened(tmp_path, raw)
    (query,), (key,) = source.matrix(f"{GDN}query", 128, 64), source.matrix(f"{GDN}key", 128, 64)
    assert query.matrix.activation_divisor == 96.5
    assert len(joined((query, key))) == 1, "equal divisors in two objects do not tear rows apart"


def test_a_parameter_without_uses_has_no_divisor(tmp_path: Path) -> None:
    source = opened(tmp_path, with_divisor(96.5))
    (query,), (key,) = source.matrix(f"{GDN}query", 128, 64), source.matrix(f"{GDN}key", 128, 64)
    assert (query.matrix.activation_divisor, key.matrix.activation_divisor) == (96.5, None), "rows of one parent"


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_divisor_must_be_finite_and_positive(tmp_path: Path, value: float) -> None:
    source = opened(tmp_path, with_divisor(value))
    with pytest.raises(InputError, match=r"gdn/query: activation_input_divisor: object d_x is .*a finite number above"):
        source.matrix(f"{GDN}query", 128, 64)


@pytest.mark.parametrize(("shape", "format"), [([1], "fp32"), ([], "bf16")])
def test_a_divisor_must_be_a_scalar(tmp_path: Path, shape: list[int], format: str) -> None:
    source = opened(tmp_path, with_divisor(1.0, shape, format))
    with pytest.raises(InputError, match=r"object d_x is (fp32 \[1\]|bf16 \[\]); one fp32 scalar is needed"):
        source.matrix(f"{GDN}query", 128, 64)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("hadamard_signs", "needs a signed Hadamard transform of its input"),
        ("input_columns", "needs a permutation of its input columns"),
        ("magic", "needs the unknown auxiliary magic"),
    ],
)
def test_a_use_that_cannot_be_honoured_is_refused_when_it_is_needed(tmp_path: Path, role: str, message: str) -> None:
    raw = fused()
    raw.bind("text/output_head", ("parent", 0, 2 * CELLS))
    raw.bind(f"{GDN}query", ("parent", 0, CELLS))
    raw.use(f"{GDN}query", "text/layers/0/mixer_input", **{role: "plain"})
    raw.use("text/output_head", "mtp/final_hidden", **{role: "plain"})  # nobody drafts here
    source = opened(tmp_path, raw)
    assert source.matrix("text/output_head", 256, 64)
    with pytest.raises(InputError, match=rf"gdn/query: its use with text/layers/0/mixer_input {message}, which is not"):
        source.matrix(f"{GDN}query", 128, 64)


# Values.


def test_values_in_their_shape(tmp_path: Path) -> None:
    raw = RawArtifact()
    raw.tensor("conv", [4, 3], "bf16", bf16(np.arange(12).reshape(4, 3) - 5))
    raw.tensor("log", [2], "fp32", np.array([0.1, -3.3], "<f4").tobytes())
    raw.tensor("ids", [3], "int32", np.array([7, 0, 2], "<i4").tobytes())
    raw.bind_whole(f"{GDN}convolution", "conv")
    raw.bind_whole(f"{GDN}a_log", "log")
    raw.bind_whole("proposal/token_ids", "ids")
    raw.bind("vision/layers/0/attention/key_bias", ("conv", 5, 7), ("log", 0, 2))
    source = opened(tmp_path, raw)
    convolution = source.array(f"{GDN}convolution", (4, 3))
    assert convolution.dtype == np.float32
    assert convolution.tolist() == (np.arange(12.0).reshape(4, 3) - 5).tolist()
    assert source.array(f"{GDN}a_log", (2,)).tolist() == np.array([0.1, -3.3], np.float32).tolist()
    ids = source.array("proposal/token_ids", (3,))
    assert ids.dtype == np.int32
    assert ids.tolist() == [7, 0, 2]
    bias = source.array("vision/layers/0/attention/key_bias", (4,))
    assert bias.tolist() == np.array([0, 1, 0.1, -3.3], np.float32).tolist()


@pytest.mark.parametrize(
    ("parameter", "name", "shape", "message"),
    [
        ("text/final_norm", "parent", (256, 64), r"object parent is stored as nvfp4, .* possible: bf16, fp32"),
        ("text/final_norm", "ids", (3,), r"object ids is stored as int32, which this parameter cannot be"),
        ("proposal/token_ids", "norm", (64,), r"object norm is stored as bf16, .* possible: int32"),
        ("text/final_norm", "norm", (65,), r"object norm has shape \[64\], expected \[65\]"),
    ],
    ids=["quantised", "ids as values", "values as ids", "shape"],
)
def test_values_that_the_parameter_cannot_have(
    tmp_path: Path, parameter: str, name: str, shape: tuple[int, ...], message: str
) -> None:
    raw = fused()
    raw.tensor("norm", [64], "bf16", bytes(128))
    raw.tensor("ids", [3], "int32", bytes(12))
    raw.bind_whole(parameter, name)
    source = opened(tmp_path, raw)
    for ask in (source.require_array, source.array):
        with pytest.raises(InputError, match=message):
            ask(parameter, shape)


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    raw = RawArtifact()
    raw.tensor("norms", [2, 4], "bf16", bf16(np.array([[np.nan, 1, 1, 1], [1, 1, -np.inf, np.nan]])))
    raw.bind("text/final_norm", ("norms", 4, 8))
    source = opened(tmp_path, raw)
    source.require_array("text/final_norm", (4,))
    with pytest.raises(
        InputError,
        match=r"parameter text/final_norm: object norms: 2 of 4 values are not finite, the first is -inf at element 6$",
    ):
        source.array("text/final_norm", (4,))


# What else is in the file.


def test_configuration_and_resources(tmp_path: Path) -> None:
    raw = RawArtifact({"text": {"config": CONFIG}, "vision": {"config": {}, "target": "text"}})
    raw.resource("text", "tokenizer.json", b'{"model": {}}')
    raw.resource("vision", "preprocessor_config.json", b"{}")
    source = opened(tmp_path, raw)
    assert source.resource("tokenizer.json") == b'{"model": {}}'
    assert source.resource("preprocessor_config.json") == b"{}"
    assert source.resource("chat_template.jinja") is None
    for key in ("model_type", "hidden_size", "layer_types", "linear_num_value_heads", "intermediate_size"):
        assert source.config[key] == CONFIG[key]
    assert source.config["rms_norm_eps"] == 1e-6
    assert source.config["hidden_act"] == "silu"


def test_a_configuration_that_no_model_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"m\.ninfer: text: unknown member 'colour'"):
        opened(
            tmp_path,
            RawArtifact({"text": {"config": CONFIG | {"colour": 1}}}, objects=fused().objects, payload=fused().payload),
        )


def test_components_that_are_not_loaded_are_not_looked_at(tmp_path: Path) -> None:
    raw = fused()
    raw.components |= {"vision": {"config": {"nonsense": True}}, "ngram": {"config": {}}}
    raw.tensor("exotic", [2, 1], "q9", bytes(100), "of_tomorrow")
    raw.bind_whole("vision/anything", "exotic")
    raw.bind_whole("ngram/table", "exotic")
    raw.bind_whole("text/final_norm", "plain")
    source = opened(tmp_path, raw)
    source.require_no_others(frozenset({"text/final_norm"}))
    assert source.components == ("text", "vision", "ngram")
    assert source.stored_formats("ngram") == {"q9": 1}
    with pytest.raises(InputError, match=r"object exotic: format 'q9' is unknown"):
        source.matrix("ngram/table", 2, 1)


def test_parameters_that_the_model_does_not_know(tmp_path: Path) -> None:
    raw = fused()
    for index in range(7):
        raw.bind_whole(f"text/extra/{index}", "plain")
    with pytest.raises(InputError, match=r"m\.ninfer: unexpected parameters: text/extra/0, .*text/extra/4 and 2 more"):
        opened(tmp_path, raw).require_no_others(frozenset({"text/final_norm"}))


# Older containers.


def test_version_2_by_object_names(tmp_path: Path) -> None:
    """One GDN layer's worth of objects of a 27B file, as its publisher spells them."""
    prefix = "text/layers/0/"
    gate_up_bytes, ab_bytes = 100_270_084, 2 * 96 * 5120
    objects: list[dict[str, Any]] = [
        {"name": "frontend/tokenizer.json", "kind": "resource", "encoding": "raw-bytes-v1", "offset": 0, "bytes": 2}
    ]
    end = 256
    sizes = [
        (f"{prefix}gdn/a_b_projection", [96, 5120], "BF16", "contiguous-le-v1", ab_bytes),
        (f"{prefix}mlp/gate_up", [34816, 5120], "NVFP4", "blockscale-k16-m128x4-v1", gate_up_bytes),
        (f"{prefix}mlp/gate_up_projection/input_scale_divisor", [], "FP32", "contiguous-le-v1", 4),
    ]
    for name, shape, format, layout, size in sizes:
        record = {"name": name, "kind": "tensor", "shape": shape, "format": format, "layout": layout}
        objects.append(record | {"offset": end, "bytes": size})
        end += -(-size // 256) * 256
    gate_up, scalar = objects[2]["offset"], objects[3]["offset"]
    payload = {0: b"{}", gate_up + gate_up_bytes - 4: struct.pack("<f", 3.0), scalar: struct.pack("<f", 7.0)}
    root = {"identity": {"model_id": "qwen3.8-27b", "weights_id": "nvfp4"}, "objects": objects}
    source = ArtifactSource.open(old_artifact(tmp_path / "m.ninfer", root, 2, payload, end))
    assert source.config["hidden_size"] == 5120
    assert source.resource("tokenizer.json") == b"{}"
    (up,) = source.matrix(f"{prefix}mlp/up", 17408, 5120)
    assert (up.begin, up.end, up.matrix.divisors, up.matrix.activation_divisor) == (17408, 34816, (3.0,), 7.0)
    (b,) = source.matrix(f"{prefix}gdn/b_projection", 48, 5120)
    assert (b.matrix.name, b.begin, b.end) == (f"{prefix}gdn/a_b_projection", 48, 96)


def test_version_2_of_an_unknown_model(tmp_path: Path) -> None:
    root = {
        "identity": {"model_id": "llama", "weights_id": "x"},
        "objects": [{"name": "r", "kind": "resource", "encoding": "raw-bytes-v1", "offset": 0, "bytes": 2}],
    }
    with pytest.raises(InputError, match=r"model_id 'llama' is unknown; known: qwen3\.6-27b"):
        ArtifactSource.open(old_artifact(tmp_path / "m.ninfer", root, 2, {}, 2))
