"""Models in every stored format against the plain model of the very same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels_numba.cpu.table import CPU_OPS
from kernels_numba.ops import OpTable
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.errors import InputError
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text, text_geometry
from ninferd.weights.artifact.directory import Binding, BindingPart
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.formats.registry import BF16, FP8_ROW, FP32, NVFP4, Q4, Q5, Q6, Q8, T2
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.loading.resolve import resolve_plan
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter
from ninferd.weights.source import ModelSource
from tests.support.artifacts import FormatOf, write_artifact
from tests.support.batching import chunked
from tests.support.checkpoints import MOE, TEXT, write_random_checkpoint
from tests.support.matrix_values import matrix_values
from tests.support.models import prompt_tokens
from tests.support.quantised_checkpoints import LAYOUTS, write_quantised
from tests.support.sequences import Runner
from tests.support.value_sources import PlainSource, Values, stored_values

CPU = torch.device("cpu")
TOLERANCE = 5e-5
"""Of logits between two orders of float32 sums, relative to their largest; 1.1e-5 was seen."""

SIZES = {  # every matrix but a and b can be nvfp4; parts of fused parents do not begin at multiples of 128 rows
    "hidden_size": 128,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "eos_token_id": None,
}
CONFIGS = {
    "dense": TEXT | SIZES,
    "moe": MOE | SIZES | {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128},
}


@dataclass(frozen=True)
class Original:
    """A random checkpoint in float32."""

    directory: Path
    geometry: ModelGeometry
    values: Values


@pytest.fixture(scope="module", params=list(CONFIGS))
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    directory = tmp_path_factory.mktemp(request.param)
    write_random_checkpoint(directory, CONFIGS[request.param], seed=3)
    source = HuggingFaceSource.open(directory)
    geometry = ModelGeometry(text_geometry(text_config(source)))
    return Original(directory, geometry, stored_values(source, geometry))


def load(source: ModelSource, ops: OpTable = CPU_OPS, dtype: torch.dtype = torch.float32) -> Qwen3_5Text:
    return load_text(source, text_config(source), ops, CPU, dtype, lambda done, total: None)


def logits_of(model: Qwen3_5Text) -> torch.Tensor:
    runner = Runner.create(model, 1, 80)
    first = runner.step({0: prompt_tokens(70)}, all_logits=True)
    return torch.cat([first, *(runner.step({0: [token]}) for token in (5, 6, 7))])


def require_agreement(source: ModelSource, original: Original, tmp_path: Path, ops: OpTable) -> Values:
    """Every matrix has exactly the values that the reference decoders find, and the logits are those of the values."""
    config = text_config(source)
    geometry = ModelGeometry(text_geometry(config))
    assert geometry == original.geometry
    values = stored_values(source, geometry)
    plan = text_plan(geometry.text)
    resolved = resolve_plan(source, plan, "<f4")
    requests = {request.key: request for request in plan.matrices}
    allocated = 0
    for key, matrices in load_matrices(resolved.matrices, CPU, lambda done, total: None):
        allocated += sum(matrix.size_bytes for matrix in matrices)
        for index, parameters in enumerate(requests[key].matrices):
            parts = [matrix[index] if matrix.stack else matrix for matrix in matrices]
            found = np.concatenate([matrix_values(part) for part in parts])
            expected = np.concatenate([values[parameter.name] for parameter in parameters])
            np.testing.assert_allclose(found, expected, rtol=2**-22, atol=0, err_msg=key)
    assert resolved.device_bytes == allocated + sum(4 * np.prod(array.shape) for array in plan.arrays)
    plain = load(PlainSource(tmp_path / "plain.bin", source.config, values), ops)
    expected_logits, logits = logits_of(plain), logits_of(load(source, ops))
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=TOLERANCE * float(expected_logits.abs().max()))
    return values


every_table = pytest.mark.parametrize("ops", [CPU_OPS, TORCH_OPS], ids=lambda ops: ops.name)


@every_table
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_quantised_directories(original: Original, layout: str, ops: OpTable, tmp_path: Path) -> None:
    write_quantised(original.directory, tmp_path / "model", layout)
    values = require_agreement(HuggingFaceSource.open(tmp_path / "model"), original, tmp_path, ops)
    differences = [name for name, array in values.items() if not np.array_equal(array, original.values[name])]
    assert len(differences) > len(values) // 3


@every_table
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_plain_directories(original: Original, dtype: torch.dtype, ops: OpTable, tmp_path: Path) -> None:
    tensors = load_file(original.directory / "model.safetensors")
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((original.directory / "config.json").read_bytes())
    require_agreement(HuggingFaceSource.open(tmp_path), original, tmp_path, ops)


def all_in(format: str) -> FormatOf:
    return lambda parameter: format


def in_turn(*formats: str) -> FormatOf:
    """Whatever the parameter; but the experts of a layer have one format for gate and up, and one for down."""
    following = cycle(formats)

    def choose(parameter: Parameter) -> str:
        if "/experts/" in parameter.name:
            return formats[parameter.name.endswith("/down")]
        return next(following)

    return choose


@every_table
@pytest.mark.parametrize("packing", ["fused", "split"])
@pytest.mark.parametrize("format", [BF16, FP32, NVFP4, FP8_ROW, Q4, Q5, Q6, Q8, T2])
def test_artifacts(original: Original, format: str, packing: str, ops: OpTable, tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    write_artifact(path, original.geometry, original.values, all_in(format), is_fused=packing == "fused")
    require_agreement(ArtifactSource.open(path), original, tmp_path, ops)


@every_table
def test_artifacts_of_several_formats_and_files(original: Original, ops: OpTable, tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    formats = in_turn(NVFP4, Q5, FP8_ROW, BF16, Q8, FP32)
    write_artifact(path, original.geometry, original.values, formats, is_fused=False, max_file_bytes=40_960)
    assert len(list(tmp_path.glob("model.ninfer.part-*"))) > 3
    require_agreement(ArtifactSource.open(path), original, tmp_path, ops)


@every_table
def test_a_head_bound_to_the_embedding_is_loaded_once(original: Original, ops: OpTable, tmp_path: Path) -> None:
    path, aliases = tmp_path / "model.ninfer", {"text/output_head": "text/token_embedding"}
    write_artifact(path, original.geometry, original.values, all_in(Q8), is_fused=True, aliases=aliases)
    source = ArtifactSource.open(path)
    require_agreement(source, original, tmp_path, ops)
    write_artifact(tmp_path / "two.ninfer", original.geometry, original.values, all_in(Q8), is_fused=True)
    twice = ArtifactSource.open(tmp_path / "two.ninfer")
    plan = text_plan(original.geometry.text)
    head_bytes = resolve_plan(twice, plan, "<f4").device_bytes - resolve_plan(source, plan, "<f4").device_bytes
    assert head_bytes == 512 * 128 // 32 * (32 + 2)
    if ops is TORCH_OPS:
        assert load(twice, ops).weights_bytes - load(source, ops).weights_bytes == head_bytes


def test_the_torch_ops_take_what_was_predicted(original: Original, tmp_path: Path) -> None:
    """The order of the torch table is that of the matrices, so that nothing is added by packing."""
    path = tmp_path / "model.ninfer"
    write_artifact(path, original.geometry, original.values, all_in(NVFP4), is_fused=True)
    source = ArtifactSource.open(path)
    predicted = resolve_plan(source, text_plan(original.geometry.text), "<u2").device_bytes
    assert load(source, TORCH_OPS, torch.bfloat16).weights_bytes == predicted


@pytest.mark.parametrize("format", [NVFP4, FP8_ROW, Q5])
def test_chunks_give_the_same_bits_on_cpu(original: Original, format: str, tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    write_artifact(path, original.geometry, original.values, all_in(format), is_fused=True)
    model, tokens = load(ArtifactSource.open(path)), prompt_tokens(70)
    whole = Runner.create(model, 1, 70).step({0: tokens}, all_logits=True)
    assert torch.equal(chunked(Runner.create(model, 1, 70), tokens, [1, 2, 64, 3]), whole)


def missing(bindings: dict[str, Binding]) -> None:
    del bindings["text/layers/1/attention/output"]


def missing_norm(bindings: dict[str, Binding]) -> None:
    del bindings["text/layers/1/attention/key_norm"]


def too_few_rows(bindings: dict[str, Binding]) -> None:
    part = bindings["text/layers/1/attention/key"].parts[0]
    bindings["text/layers/1/attention/key"] = Binding((BindingPart(part.object_id, part.begin, part.end - 128),))


def left_over(bindings: dict[str, Binding]) -> None:
    bindings["text/layers/2/input_norm"] = bindings["text/final_norm"]


def embedding_in_two_formats(bindings: dict[str, Binding]) -> None:
    half = 256 * 128
    parts = (BindingPart("text/token_embedding", 0, half), BindingPart("text/output_head", half, 2 * half))
    bindings["text/token_embedding"] = Binding(parts)


@pytest.mark.parametrize(
    ("rebind", "problem"),
    [
        (missing, r"parameter text/layers/1/attention/output \[128, 128\] is missing"),
        (missing_norm, r"parameter text/layers/1/attention/key_norm \[32\] is missing"),
        (too_few_rows, r"text/layers/1/attention/key: its parts have 8064 elements, expected 8192"),
        (left_over, r"unexpected parameters: text/layers/2/input_norm"),
        (
            embedding_in_two_formats,
            r"text/token_embedding must be stored in one format, found 256 rows as GroupedMatrix",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_loaded_is_named(
    original: Original, rebind: Callable[[dict[str, Binding]], None], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.ninfer"

    def format_of(parameter: Parameter) -> str:
        return Q8 if parameter.name == "text/token_embedding" else FP8_ROW

    write_artifact(path, original.geometry, original.values, format_of, is_fused=True, rebind=rebind)
    with pytest.raises(InputError, match=rf"model\.ninfer: .*{problem}"):
        load(ArtifactSource.open(path))


def test_a_prediction_finds_a_missing_norm(original: Original, tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    write_artifact(path, original.geometry, original.values, all_in(Q8), is_fused=True, rebind=missing_norm)
    with pytest.raises(InputError, match=r"parameter text/layers/1/attention/key_norm \[32\] is missing"):
        resolve_plan(ArtifactSource.open(path), text_plan(original.geometry.text), "<u2")
