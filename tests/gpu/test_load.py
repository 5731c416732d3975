"""Loading to a CUDA device through pinned buffers: the same values as on the CPU, and the memory that was predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text, text_geometry
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.formats.registry import BF16, FP8_ROW, NVFP4, Q4, Q5, Q6, Q8, T2
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.loading.resolve import resolve_plan
from ninferd.weights.loading.room import WeightsDoNotFitError
from ninferd.weights.parameters.geometry import MlpGeometry, ModelGeometry, MoeGeometry
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import RowRun
from tests.support.artifacts import write_artifact
from tests.support.matrix_values import matrix_values
from tests.support.models import prompt_tokens
from tests.support.sequences import Runner
from tests.support.stored_matrices import FORMATS, Store
from tests.support.value_sources import PlainSource, random_values, stored_values
from tests.weights.loading.support import loaded, resolved

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 384, 192
TOLERANCE = 1e-4
"""Of float32 logits between two orders of sums, relative to their largest."""


def geometry_of(name: str) -> ModelGeometry:
    """A published geometry in small: some 14 million weights."""
    text = next(each.text for each in GEOMETRIES.values() if each.text.is_moe == (name == "moe"))
    assert text.attention is not None
    assert text.gated_delta is not None
    text = replace(
        text,
        hidden_size=512,
        vocab_size=4096 if name == "dense" else 1024,
        layer_types=text.layer_types[:4],
        attention=replace(text.attention, heads=4, kv_heads=1),
        gated_delta=replace(text.gated_delta, key_heads=2, value_heads=4),
        feed_forward=MlpGeometry(1024) if name == "dense" else MoeGeometry(8, 2, 256, 256),
    )
    return ModelGeometry(text)


@pytest.fixture(params=[32 << 20, 4096], ids=["batch=32M", "batch=4K"])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer holds all, or each is used many times."""
    for module in ("transfer", "matrices", "assembly"):
        monkeypatch.setattr(f"ninferd.weights.loading.{module}.BATCH_BYTES", request.param)


@pytest.mark.parametrize("rows", [[(0, 384)], [(7, 131), (128, 256), (140, 141), (256, 384)]], ids=str)
@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.usefixtures("batch_bytes")
def test_values_from_odd_offsets_and_split_files(
    format: str, rows: list[tuple[int, int]], device: torch.device, tmp_path: Path
) -> None:
    content = FORMATS[format](np.random.default_rng(0), ROWS, COLUMNS)
    stored = Store(tmp_path).matrix(content, cut_bytes=20_001)
    (matrix,) = loaded(resolved([RowRun(stored, begin, end) for begin, end in rows]), device=device)["some"]
    assert matrix.device.type == "cuda"
    expected = np.concatenate([content.values[begin:end] for begin, end in rows])
    np.testing.assert_array_equal(matrix_values(matrix), expected.astype(np.float32) if format == "fp64" else expected)


def load(source: ModelSource, device: torch.device, dtype: torch.dtype = torch.float32) -> Qwen3_5Text:
    return load_text(source, text_config(source), TORCH_OPS, device, dtype, lambda done, total: None)


def write(directory: Path, geometry: ModelGeometry, format: str) -> ArtifactSource:
    path = directory / "model.ninfer"
    values = random_values(geometry, seed=1)
    write_artifact(path, geometry, values, lambda _: format, is_fused=True, max_file_bytes=8 << 20)
    return ArtifactSource.open(path)


@pytest.mark.parametrize("format", [BF16, NVFP4, FP8_ROW, Q4, Q5, Q6, Q8, T2])
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_logits_are_those_of_the_plain_values(name: str, format: str, device: torch.device, tmp_path: Path) -> None:
    source = write(tmp_path, geometry_of(name), format)
    geometry = ModelGeometry(text_geometry(text_config(source)))
    plain = PlainSource(tmp_path / "plain.bin", source.config, stored_values(source, geometry))
    logits = []
    for each in (plain, source):
        runner = Runner.create(load(each, device), 1, 80)
        first = runner.step({0: prompt_tokens(70)}, all_logits=True)
        logits.append(torch.cat([first, *(runner.step({0: [token]}) for token in (5, 6, 7))]))
    expected, found = logits
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max()))


@pytest.mark.parametrize("format", [BF16, NVFP4, FP8_ROW, Q5])
def test_memory_is_what_was_predicted(format: str, device: torch.device, tmp_path: Path) -> None:
    source = write(tmp_path, geometry_of("dense"), format)
    geometry = text_geometry(text_config(source))
    plan = resolve_plan(source, text_plan(geometry), "<u2")
    predicted = plan.device_bytes
    before = torch.cuda.memory_allocated(device)
    model = load(source, device, torch.bfloat16)
    allocated = torch.cuda.memory_allocated(device) - before
    assert model.weights_bytes == predicted
    sizes = [spec.size_bytes for matrix in plan.matrices for part in matrix.layouts for spec in part.tensors.values()]
    sizes += [4 * prod(parameter.shape) for parameter in plan.arrays]
    assert predicted <= allocated <= predicted + sum(allocator_slack_bytes(size) for size in sizes)


def allocator_slack_bytes(size_bytes: int) -> int:
    """What torch's allocator may add: it rounds to 512 bytes, and splits no large block for a rest below 1 MiB."""
    return 512 if size_bytes <= 1 << 20 else 1 << 20


def test_a_model_without_room_takes_none(device: torch.device, tmp_path: Path) -> None:
    source = write(tmp_path, geometry_of("dense"), Q8)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with pytest.raises(WeightsDoNotFitError, match="do not fit on cuda"):
        load_text(source, text_config(source), TORCH_OPS, device, torch.bfloat16, lambda done, total: None, 1 << 20)
    assert torch.cuda.max_memory_allocated(device) == before


@pytest.fixture
def little_memory(device: torch.device) -> Iterator[None]:
    """Lets this process have 4 MiB beyond what it holds."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    index = torch.cuda.current_device()  # the function wants a number
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + (4 << 20)) / total, index)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, index)


@pytest.mark.usefixtures("little_memory")
def test_memory_that_runs_out_on_the_way(device: torch.device, tmp_path: Path) -> None:
    source = write(tmp_path, geometry_of("dense"), Q8)
    with pytest.raises(WeightsDoNotFitError, match=r"memory of cuda.* ran out while the weights were loaded"):
        load(source, device)
