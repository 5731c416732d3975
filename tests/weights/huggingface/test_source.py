"""Directories as model sources: parameters out of tensors, for plain checkpoints and every quantised layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from ninferd.errors import InputError
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.registry import Parameter, parameters
from ninferd.weights.stored import RowRun
from tests.support.checkpoints import MOE, TEXT, nested, write_random_checkpoint
from tests.support.quantised_checkpoints import LAYOUTS, LINEAR, write_quantised
from tests.weights.huggingface.files import write_directory

Tensors = dict[str, torch.Tensor]
Values = dict[str, NDArray[np.float64]]


def registry_of(source: HuggingFaceSource) -> tuple[Parameter, ...]:
    return parameters(model_geometry(component_configs(source.config, "config.json"), "config.json"))


def decoded(runs: tuple[RowRun, ...]) -> NDArray[Any]:
    return np.concatenate([decode_rows(run.matrix, run.begin, run.end) for run in runs])


def value_of(source: HuggingFaceSource, parameter: Parameter) -> NDArray[Any]:
    if parameter.direct is None:
        return decoded(source.matrix(parameter.name, parameter.shape[0], parameter.shape[1]))
    return source.array(parameter.name, parameter.shape)


def expected_value(exact: Values, name: str, prefix: str = "model.") -> NDArray[np.float64]:
    """The value of a text parameter by the formulas of the model's documents."""
    _, kind, *rest = name.split("/")
    if kind != "layers":
        return exact[
            {
                "token_embedding": f"{prefix}embed_tokens.weight",
                "final_norm": f"{prefix}norm.weight",
                "output_head": "lm_head.weight",
            }[kind]
        ]
    layer, *path = rest
    source = f"{prefix}layers.{layer}."
    part = path[-1]
    if len(path) == 1:
        return exact[source + {"input_norm": "input_layernorm.weight"}.get(part, "post_attention_layernorm.weight")]
    if path[0] == "attention":
        if part in ("query", "gate"):
            both = exact[f"{source}self_attn.q_proj.weight"]
            return both.reshape(4, 2, 32, 64)[:, int(part == "gate")].reshape(128, 64)
        names = {"key": "k_proj", "value": "v_proj", "output": "o_proj", "query_norm": "q_norm", "key_norm": "k_norm"}
        return exact[f"{source}self_attn.{names[part]}.weight"]
    if path[0] == "gdn":
        source += "linear_attn."
        if part in ("query", "key", "value"):
            qkv = exact[f"{source}in_proj_qkv.weight"]
            return dict(zip(("query", "key", "value"), np.split(qkv, [32, 64]), strict=True))[part]
        if part == "convolution":
            return exact[f"{source}conv1d.weight"][:, 0].T
        names = {"a_log": "A_log", "dt_bias": "dt_bias", "norm": "norm.weight", "z": "in_proj_z.weight"}
        names |= {"output": "out_proj.weight", "a_projection": "in_proj_a.weight", "b_projection": "in_proj_b.weight"}
        return exact[source + names[part]]
    source += "mlp."
    if path[1] == "experts":
        return exact[f"{source}experts.{path[2]}.{part}_proj.weight"]
    if path[1] == "shared":
        return exact[f"{source}shared_expert.{part}_proj.weight"]
    return exact[
        source + {"router": "gate", "shared_score": "shared_expert_gate"}.get(part, f"{part}_proj") + ".weight"
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Plain checkpoints, written once."""
    written: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in written:
            written[kind] = tmp_path_factory.mktemp(kind)
            write_random_checkpoint(written[kind], {"dense": TEXT, "moe": MOE, "nested": nested(TEXT)}[kind], seed=3)
        return written[kind]

    return directory


def exact_of(directory: Path) -> Values:
    return {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}


@pytest.mark.parametrize(
    ("kind", "prefix"), [("dense", "model."), ("moe", "model."), ("nested", "model.language_model.")]
)
def test_every_parameter_of_a_plain_checkpoint(plain: Callable[[str], Path], kind: str, prefix: str) -> None:
    source = HuggingFaceSource.open(plain(kind))
    exact = exact_of(source.path)
    known = registry_of(source)
    for parameter in known:
        assert source.has(parameter.name)
        value = value_of(source, parameter)
        assert value.dtype == np.float32
        assert value.shape == parameter.shape
        if parameter.component == "text":
            np.testing.assert_array_equal(value, expected_value(exact, parameter.name, prefix), parameter.name)
    source.require_no_others(frozenset(parameter.name for parameter in known))


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_of_every_layout(tmp_path: Path, plain: Callable[[str], Path], layout: str, kind: str) -> None:
    """Exact codes and scales; the product of up to three numbers is rounded to float32 once or twice."""
    exact = write_quantised(plain(kind), tmp_path, layout)
    source = HuggingFaceSource.open(tmp_path)
    known = registry_of(source)
    for parameter in known:
        expected = expected_value(exact, parameter.name)
        np.testing.assert_allclose(value_of(source, parameter), expected, rtol=2**-22, err_msg=parameter.name)
    source.require_no_others(frozenset(parameter.name for parameter in known))


@pytest.mark.parametrize(
    ("layout", "formats"),
    [
        ("ct-nvfp4", {"nvfp4", "fp32"}),
        ("modelopt-nvfp4", {"nvfp4", "fp32"}),
        ("fp8-tensor", {"fp8_e4m3fn_row_bf16", "fp32"}),
        ("fp8-row", {"fp8_e4m3fn_row_bf16", "fp32"}),
        ("fp8-block", {"fp8_e4m3fn_block128", "fp32"}),
        ("mixed", {"nvfp4", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_block128", "fp32"}),
    ],
)
def test_layouts_keep_their_format(
    tmp_path: Path, plain: Callable[[str], Path], layout: str, formats: set[str]
) -> None:
    write_quantised(plain("dense"), tmp_path, layout)
    source = HuggingFaceSource.open(tmp_path)
    matrices = [
        source.matrix(parameter.name, parameter.shape[0], parameter.shape[1])[0].matrix
        for parameter in registry_of(source)
        if parameter.direct is None
    ]
    assert {matrix.format for matrix in matrices} == formats
    activations = {matrix.activation_divisor for matrix in matrices if matrix.format == "nvfp4"}
    expected = {"ct-nvfp4": {37.5}, "modelopt-nvfp4": {40.96}, "mixed": {37.5, 40.96}}.get(layout, set())
    assert activations == {float(np.float32(value)) for value in expected}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_that_are_usually_plain(tmp_path: Path, plain: Callable[[str], Path], layout: str) -> None:
    """Embedding, head, the narrow projections and the drafting layer may be quantised as well."""
    pattern = rf"{LINEAR}|lm_head\.weight|.*embed_tokens\.weight|.*in_proj_[ab]\.weight"
    exact = write_quantised(plain("dense"), tmp_path, layout, pattern)
    source = HuggingFaceSource.open(tmp_path)
    names = ("text/token_embedding", "text/output_head", "text/layers/0/gdn/a_projection")
    shapes = ((512, 64), (512, 64), (6, 64))
    for name, shape in zip(names, shapes, strict=True):
        runs = source.matrix(name, *shape)
        assert runs[0].matrix.format in ("nvfp4", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_block128")
        np.testing.assert_allclose(decoded(runs), expected_value(exact, name), rtol=2**-22)
        np.testing.assert_allclose(source.array(name, shape), expected_value(exact, name), rtol=2**-22)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "language_model.", ""])
@pytest.mark.parametrize("layout", ["ct-nvfp4", "mixed"])
def test_other_prefixes(tmp_path: Path, plain: Callable[[str], Path], layout: str, prefix: str) -> None:
    exact = write_quantised(plain("dense"), tmp_path, layout)
    rewrite(tmp_path, lambda tensors: {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()})
    source = HuggingFaceSource.open(tmp_path)
    for parameter in registry_of(source):
        expected = expected_value(exact, parameter.name)
        np.testing.assert_allclose(value_of(source, parameter), expected, rtol=2**-22)


def rewrite(directory: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a checkpoint."""
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file)


@pytest.fixture
def dense(tmp_path: Path, plain: Callable[[str], Path]) -> Path:
    """A copy that a test may change."""
    for path in plain("dense").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_plain_types(dense: Path, dtype: torch.dtype) -> None:
    rewrite(dense, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    source, exact = HuggingFaceSource.open(dense), exact_of(dense)
    for parameter in registry_of(source):
        expected = expected_value(exact, parameter.name).astype(np.float32)
        np.testing.assert_array_equal(value_of(source, parameter), expected)


def test_stacked_experts_are_views_of_one_matrix(tmp_path: Path, plain: Callable[[str], Path]) -> None:
    single = plain("moe")
    for path in single.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def stacked(tensors: Tensors) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
        for layer in range(4):
            prefix = f"model.layers.{layer}.mlp.experts"
            parts = {
                part: torch.stack([tensors[f"{prefix}.{e}.{part}_proj.weight"] for e in range(8)])
                for part in ("gate", "up", "down")
            }
            kept[f"{prefix}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], 1)
            kept[f"{prefix}.down_proj"] = parts["down"]
        return kept

    rewrite(tmp_path, stacked)
    source = HuggingFaceSource.open(tmp_path)
    exact = exact_of(single)
    known = registry_of(source)
    for parameter in known:
        np.testing.assert_array_equal(value_of(source, parameter), expected_value(exact, parameter.name))
    source.require_no_others(frozenset(parameter.name for parameter in known))
    gate = source.matrix("text/layers/1/moe/experts/2/gate", 32, 64)
    up = source.matrix("text/layers/1/moe/experts/2/up", 32, 64)
    assert gate[0].matrix is up[0].matrix
    assert (gate[0].begin, gate[0].end, up[0].begin, up[0].end) == (128, 160, 160, 192)


def test_a_tied_head_is_the_embedding(dense: Path) -> None:
    config = json.loads((dense / "config.json").read_text())
    (dense / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    source = HuggingFaceSource.open(dense)
    head, embedding = (source.matrix(f"text/{name}", 512, 64) for name in ("output_head", "token_embedding"))
    assert head == embedding
    source.require_no_others(frozenset(parameter.name for parameter in registry_of(source)))  # lm_head.weight is there


def test_drafting_layer_by_its_names(dense: Path) -> None:
    """The layer of an MTP checkpoint is an attention layer under other names."""
    config = json.loads((dense / "config.json").read_text())
    (dense / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 1}))

    def with_mtp(tensors: Tensors) -> Tensors:
        layer = {
            name.replace("model.layers.3.", "mtp.layers.0."): tensor + 1
            for name, tensor in tensors.items()
            if name.startswith("model.layers.3.")
        }
        stem = {
            f"mtp.{name}.weight": torch.rand(64) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        }
        return tensors | layer | stem | {"mtp.fc.weight": torch.rand(64, 128)}

    rewrite(dense, with_mtp)
    source, exact = HuggingFaceSource.open(dense), exact_of(dense)
    known = registry_of(source)
    assert {parameter.component for parameter in known} == {"text", "mtp"}
    np.testing.assert_array_equal(source.array("mtp/input_projection", (64, 128)), exact["mtp.fc.weight"])
    np.testing.assert_array_equal(source.array("mtp/hidden_norm", (64,)), exact["mtp.pre_fc_norm_hidden.weight"])
    for name in ("query", "gate", "value", "output", "key_norm"):
        shape = next(parameter.shape for parameter in known if parameter.name == f"mtp/layers/0/attention/{name}")
        text = source.array(f"text/layers/3/attention/{name}", shape)
        np.testing.assert_array_equal(source.array(f"mtp/layers/0/attention/{name}", shape), text + 1)
    source.require_no_others(frozenset(parameter.name for parameter in known))
    text_only = frozenset(parameter.name for parameter in known if parameter.component == "text")
    source.require_no_others(text_only)  # left out on purpose
    rewrite(dense, lambda tensors: tensors | {"mtp.layers.1.x": torch.ones(1)})
    with pytest.raises(InputError, match=r"unexpected tensors: mtp\.layers\.1\.x$"):
        HuggingFaceSource.open(dense).require_no_others(frozenset(parameter.name for parameter in known))


def test_vision_parameters(plain: Callable[[str], Path]) -> None:
    source = HuggingFaceSource.open(plain("nested"))
    exact = exact_of(source.path)
    visual = "model.visual."
    patch = exact[f"{visual}patch_embed.proj.weight"].reshape(64, -1)
    np.testing.assert_array_equal(source.array("vision/patch_embedding", (64, 1536)), patch)
    qkv, bias = exact[f"{visual}blocks.1.attn.qkv.weight"], exact[f"{visual}blocks.1.attn.qkv.bias"]
    np.testing.assert_array_equal(source.array("vision/layers/1/attention/key", (64, 64)), qkv[64:128])
    np.testing.assert_array_equal(source.array("vision/layers/1/attention/value_bias", (64,)), bias[128:])
    merger = exact[f"{visual}merger.linear_fc2.weight"]
    np.testing.assert_array_equal(source.array("vision/merger/fc2", (64, 256)), merger)
    text_only = {parameter.name for parameter in registry_of(source) if parameter.component == "text"}
    source.require_no_others(frozenset(text_only))


def test_scales_of_a_kv_cache_are_ignored(dense: Path) -> None:
    extra = {f"model.layers.3.self_attn.{name}": torch.ones(1) for name in ("k_scale", "v_scale", "k_proj.k_scale")}
    rewrite(dense, lambda tensors: tensors | extra)
    source = HuggingFaceSource.open(dense)
    source.require_no_others(frozenset(parameter.name for parameter in registry_of(source)))


def test_left_over_tensors(dense: Path) -> None:
    rewrite(dense, lambda tensors: tensors | {f"extra.{i}": torch.ones(2) for i in range(7)})
    source = HuggingFaceSource.open(dense)
    with pytest.raises(InputError, match=r"unexpected tensors: extra\.0, .*extra\.4 and 2 more"):
        source.require_no_others(frozenset(parameter.name for parameter in registry_of(source)))


def test_a_missing_tensor_is_named_with_its_shape(dense: Path) -> None:
    rewrite(dense, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    source = HuggingFaceSource.open(dense)
    assert not source.has("text/output_head")
    with pytest.raises(InputError, match=r"tensor lm_head\.weight \[512, 64\] is missing"):
        source.matrix("text/output_head", 512, 64)


def test_a_missing_expert_is_named_both_ways(tmp_path: Path, plain: Callable[[str], Path]) -> None:
    for path in plain("moe").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    gone = "model.layers.0.mlp.experts.5.up_proj.weight"
    rewrite(tmp_path, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != gone})
    with pytest.raises(
        InputError, match=r"experts\.gate_up_proj \[8, 64, 64\] or .*\.5\.up_proj\.weight \[32, 64\] is mis"
    ):
        HuggingFaceSource.open(tmp_path).matrix("text/layers/0/moe/experts/5/up", 32, 64)


def test_a_wrong_shape_names_file_and_both_shapes(dense: Path) -> None:
    rewrite(dense, lambda tensors: tensors | {"model.norm.weight": torch.ones(5)})
    problem = r"model\.safetensors: tensor model\.norm\.weight has shape \[5\], expected \[64\]"
    source = HuggingFaceSource.open(dense)
    for ask in (source.require_array, source.array):
        with pytest.raises(InputError, match=problem):
            ask("text/final_norm", (64,))


def test_another_shape_than_the_configuration_gives(dense: Path) -> None:
    source = HuggingFaceSource.open(dense)
    with pytest.raises(InputError, match=r"parameter text/output_head is \[512, 64\], expected \[500, 64\]"):
        source.matrix("text/output_head", 500, 64)
    for ask in (source.require_array, source.array):
        with pytest.raises(InputError, match=r"parameter text/final_norm is \[64, 1\], expected \[60\]"):
            ask("text/final_norm", (60,))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("parameter", "shape", "tensor"),
    [
        ("text/final_norm", (64,), "model.norm.weight"),
        ("text/layers/0/gdn/a_log", (6,), "model.layers.0.linear_attn.A_log"),
        ("text/layers/0/gdn/convolution", (4, 160), "model.layers.0.linear_attn.conv1d.weight"),
    ],
)
def test_small_values_that_are_no_numbers(
    dense: Path, parameter: str, shape: tuple[int, ...], tensor: str, value: float
) -> None:
    def change(tensors: Tensors) -> Tensors:
        tensors[tensor].view(-1)[5] = value
        return tensors

    rewrite(dense, change)
    source = HuggingFaceSource.open(dense)
    source.require_array(parameter, shape)
    with pytest.raises(InputError) as refused:
        source.array(parameter, shape)
    assert str(refused.value) == (
        f"{dense}/model.safetensors: tensor {tensor}: parameter {parameter}: 1 of {prod(shape)} values are not finite, "
        f"the first is {value} at element 5"
    )


def test_an_unknown_parameter(dense: Path) -> None:
    source = HuggingFaceSource.open(dense)
    assert not source.has("proposal/head")
    assert not source.has("vision/patch_embedding")
    with pytest.raises(InputError, match=r"parameter dflash/context_norm is none of this model's"):
        source.array("dflash/context_norm", (64,))


def test_frontend_files(dense: Path) -> None:
    (dense / "tokenizer.json").write_bytes(b"{}")
    source = HuggingFaceSource.open(dense)
    assert source.resource("tokenizer.json") == b"{}"
    assert source.resource("chat_template.jinja") is None
    assert source.config["vocab_size"] == 512


@pytest.mark.parametrize(
    ("quantisation", "method"),
    [
        ({"quant_method": "awq", "bits": 4}, "'awq'"),
        ({"quant_method": "gptq"}, "'gptq'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"quant_method": 7}, "7"),
        ("int8", "'int8'"),
    ],
    ids=["awq", "gptq", "bitsandbytes", "a number", "a word"],
)
@pytest.mark.parametrize("is_nested", [False, True], ids=["top", "text_config"])
def test_methods_that_cannot_be_read_are_refused_by_name(
    dense: Path, quantisation: object, method: str, is_nested: bool
) -> None:
    config = {"quantization_config": quantisation}
    (dense / "config.json").write_text(json.dumps({"text_config": config} if is_nested else config))
    with pytest.raises(
        InputError, match=rf"config\.json: quantization_config: weights quantised by {method} cannot be"
    ):
        HuggingFaceSource.open(dense)


@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt", "modelopt_fp4", "modelopt_mixed", "fp8", None])
def test_a_configuration_says_nothing_of_a_tensor(dense: Path, method: str | None) -> None:
    """Plain tensors are plain, whatever the configuration claims."""
    config = json.loads((dense / "config.json").read_text()) | {"quantization_config": {"quant_method": method}}
    (dense / "config.json").write_text(json.dumps(config))
    source = HuggingFaceSource.open(dense)
    assert source.matrix("text/layers/0/mlp/up", 128, 64)[0].matrix.format == "fp32"


DRAFTER: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "vocab_size": 96,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "num_target_layers": 4,
    "layer_types": ["full_attention"],
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "dflash_config": {
        "target_layer_ids": [1, 3],
        "mask_token_id": 95,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}


def drafter_tensors() -> Tensors:
    """Names and shapes as the documents of DFlash and DFlash2 list them."""
    layer = {
        "input_layernorm.weight": (64,),
        "post_attention_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (64, 64),
        "self_attn.k_proj.weight": (32, 64),
        "self_attn.v_proj.weight": (32, 64),
        "self_attn.o_proj.weight": (64, 64),
        "self_attn.q_norm.weight": (16,),
        "self_attn.k_norm.weight": (16,),
        "mlp.gate_proj.weight": (80, 64),
        "mlp.up_proj.weight": (80, 64),
        "mlp.down_proj.weight": (64, 80),
        "attention_conv.base_kernel": (2, 2, 64),
        "attention_conv.kernel_projection.weight": (16, 64),
        "mlp_conv.base_kernel": (2, 2, 64),
        "mlp_conv.kernel_projection.weight": (16, 64),
    }
    shapes = {f"layers.0.{name}": shape for name, shape in layer.items()} | {
        "fc.weight": (64, 128),
        "hidden_norm.weight": (64,),
        "norm.weight": (64,),
        "candidate_selector.hidden_projection.weight": (8, 64),
        "candidate_selector.predecessor_codebook": (96, 8),
        "candidate_selector.successor_codebook": (96, 8),
    }
    generator = torch.Generator().manual_seed(11)
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def test_a_drafter_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    tensors = drafter_tensors()
    write_directory(tmp_path, {"model.safetensors": tensors}, config=DRAFTER)
    source = HuggingFaceSource.open(tmp_path)
    names = {
        "feature_projection": "fc.weight",
        "context_norm": "hidden_norm.weight",
        "final_norm": "norm.weight",
        "layers/0/post_attention_norm": "layers.0.post_attention_layernorm.weight",
        "layers/0/attention/query": "layers.0.self_attn.q_proj.weight",
        "layers/0/attention/context_key": "layers.0.self_attn.k_proj.weight",
        "layers/0/attention/context_value": "layers.0.self_attn.v_proj.weight",
        "layers/0/attention/key_norm": "layers.0.self_attn.k_norm.weight",
        "layers/0/mlp/down": "layers.0.mlp.down_proj.weight",
        "layers/0/mlp_conv/base_kernel": "layers.0.mlp_conv.base_kernel",
        "layers/0/attention_conv/kernel_projection": "layers.0.attention_conv.kernel_projection.weight",
        "candidate_selector/hidden_projection": "candidate_selector.hidden_projection.weight",
        "candidate_selector/successor_codebook": "candidate_selector.successor_codebook",
    }
    for parameter, tensor in names.items():
        expected = tensors[tensor].numpy()
        np.testing.assert_array_equal(source.array(f"dflash2/{parameter}", expected.shape), expected)
    key = source.matrix("dflash2/layers/0/attention/key", 32, 64)
    assert source.matrix("dflash2/layers/0/attention/context_key", 32, 64) == key
    assert not source.has("text/token_embedding")
    assert not source.has("dflash/context_norm")
    target = model_geometry(component_configs(TEXT | {"vocab_size": 96}, "c") | component_configs(DRAFTER, "c"), "c")
    source.require_no_others(frozenset(each.name for each in parameters(target) if each.component == "dflash2"))
    with pytest.raises(InputError, match=r"unexpected tensors: layers\.0\.mlp_conv\.kernel_projection\.weight"):
        source.require_no_others(
            frozenset(each.name for each in parameters(target) if not each.name.endswith("mlp_conv/kernel_projection"))
        )
