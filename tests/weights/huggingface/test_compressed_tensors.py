"""The layouts of compressed-tensors against that package itself: what it compresses, we read as it decompresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.huggingface.quantised import stored_matrix
from ninferd.weights.huggingface.safetensors import read_header
from ninferd.weights.parameters.huggingface_names import SourceTensor
from tests.support.quantised_checkpoints import compressed_tensors_nvfp4

ROWS, COLUMNS = 256, 384


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("compressed_tensors")


def compressed(package: Any, preset: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the package stores for ``weight``, and what it makes of that again."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    state = {"weight": weight}
    blocks = weight.reshape(ROWS, 1, COLUMNS, 1)
    if preset.startswith("NVFP4"):
        state["weight_global_scale"] = generate_gparam(weight.min(), weight.max()).reshape(1)
        blocks = weight.reshape(ROWS, 1, COLUMNS // 16, 16).transpose(2, 1)
    elif preset == "FP8":
        blocks = weight.reshape(1, ROWS, 1, COLUMNS)
    elif preset == "FP8_BLOCK":
        blocks = weight.reshape(ROWS // 128, 128, COLUMNS // 128, 128).transpose(2, 1)
    else:
        blocks = weight.reshape(ROWS, 1, 1, COLUMNS)
    least, most = blocks.amin((-2, -1)), blocks.amax((-2, -1))
    if preset == "FP8":
        least, most = least.amin().reshape(1), most.amax().reshape(1)
    elif preset == "FP8_DYNAMIC":
        least, most = least.reshape(ROWS, 1), most.reshape(ROWS, 1)
    scale, _ = calculate_qparams(least, most, scheme.weights, global_scale=state.get("weight_global_scale"))
    state["weight_scale"] = scale
    if not preset.startswith("NVFP4"):
        compressor = BaseCompressor.get_value_from_registry("float-quantized")
        stored = compressor.compress(state, scheme)
        return stored, compressor.decompress(stored, scheme)["weight"]
    stored = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized").compress(state, scheme)
    codes = unpack_fp4_from_uint8(stored["weight_packed"], ROWS, COLUMNS, dtype=torch.float32)  # not its usual bfloat16
    scales = stored["weight_scale"].float()
    return stored, dequantize(codes, scales, args=scheme.weights, global_scale=stored["weight_global_scale"])


@pytest.mark.parametrize(
    ("preset", "format"),
    [
        ("NVFP4", "nvfp4"),
        ("NVFP4A16", "nvfp4"),
        ("FP8", "fp8_e4m3fn_row_bf16"),
        ("FP8_DYNAMIC", "fp8_e4m3fn_row_bf16"),
        ("FP8_BLOCK", "fp8_e4m3fn_block128"),
    ],
)
def test_presets(tmp_path: Path, package: Any, preset: str, format: str) -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)) * 0.05
    stored, expected = compressed(package, preset, weight)
    path = tmp_path / "model.safetensors"
    save_file({f"x.{name}": tensor.detach().contiguous() for name, tensor in stored.items()}, path)
    source = SourceTensor("x.weight", (ROWS, COLUMNS), COLUMNS, ((0, ROWS),))
    matrix = stored_matrix(read_header(path), source)
    assert matrix.format == format
    decoded = decode_rows(matrix, 0, ROWS)
    largest = expected.abs().max().item()
    np.testing.assert_allclose(decoded, expected.detach().float().numpy(), rtol=2**-21, atol=1e-7 * largest)
    assert np.abs(decoded - weight.numpy()).max() < largest / 6


def test_our_test_checkpoints_are_stored_as_the_package_does(package: Any) -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2)) * 0.05
    theirs, _ = compressed(package, "NVFP4", weight)
    ours, _ = compressed_tensors_nvfp4("x", weight)
    assert torch.equal(ours["x.weight_global_scale"], theirs["weight_global_scale"].reshape(1))
    assert torch.equal(ours["x.weight_scale"].view(torch.uint8), theirs["weight_scale"].view(torch.uint8))
    differing = (ours["x.weight_packed"] != theirs["weight_packed"]).float().mean().item()
    assert differing < 0.001  # ties of float32 and float64 arithmetic
