"""Checkpoints in the quantised layouts that publishers use, made from plain ones by the layouts' own formulas.

Everything here is torch and independent of the product: float8 by torch's casts, E2M1 by distance to its eight values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Values = NDArray[np.float64]
Quantise = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
"""From base name and float32 weight to the tensors stored for it and its exact values in float64."""

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
_EVEN_CODES_FIRST = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
BLOCK = 128

LINEAR = r".*\.((q|k|v|o|out|gate|up|down)_proj|in_proj_(qkv|z))\.weight"
"""What every publisher quantises; the rest stays as it is unless a test says otherwise."""


def write_quantised(directory_in: Path, directory_out: Path, layout: str, pattern: str = LINEAR) -> dict[str, Values]:
    """Write the checkpoint ``directory_in`` again with each weight that matches ``pattern`` in a quantised layout.

    ``layout`` is one of LAYOUTS. Stacked experts become single ones. Returns the exact values of every tensor by its
    name; other files are copied.
    """
    directory_out.mkdir(parents=True, exist_ok=True)
    stored: Tensors = {}
    exact: dict[str, Values] = {}
    for name, tensor in _single_experts(load_file(directory_in / "model.safetensors")):
        if re.fullmatch(pattern, name) is None:
            stored[name], exact[name] = tensor, tensor.double().numpy()
            continue
        base = name.removesuffix(".weight")
        tensors, values = LAYOUTS[layout](base, tensor.float())
        stored |= tensors
        exact[name] = values.numpy()
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, directory_out / "model.safetensors")
    for path in directory_in.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            (directory_out / path.name).write_bytes(path.read_bytes())
    config = json.loads((directory_in / "config.json").read_text())
    config["quantization_config"] = CONFIGURATIONS[layout]
    (directory_out / "config.json").write_text(json.dumps(config))
    return exact


def compressed_tensors_nvfp4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """W = code * scale / global scale, with global scale 448 * 6 / max|W|."""
    global_scale = (2688 / weight.abs().max()).float().reshape(1)
    codes, scales = _nvfp4(weight.double() * global_scale.double())
    exact = _e2m1(codes) * _per_block(scales) / global_scale.double()
    return {
        f"{base}.weight_packed": _packed(codes),
        f"{base}.weight_scale": scales,
        f"{base}.weight_global_scale": global_scale,
        f"{base}.input_global_scale": torch.tensor([37.5]),
    }, exact


def modelopt_nvfp4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """W = code * scale * scale 2, with scale 2 = max|W| / (448 * 6)."""
    second = (weight.abs().max() / 2688).float()
    codes, scales = _nvfp4(weight.double() / second.double())
    exact = _e2m1(codes) * _per_block(scales) * second.double()
    return {
        f"{base}.weight": _packed(codes),
        f"{base}.weight_scale": scales,
        f"{base}.weight_scale_2": second,
        f"{base}.input_scale": torch.tensor(0.0244140625),
    }, exact


def fp8_tensor(
    base: str, weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensors, torch.Tensor]:
    """W = code * scale, one scale."""
    scale = (weight.abs().max() / 448).to(scale_dtype)
    codes = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {f"{base}.weight": codes, f"{base}.weight_scale": scale, f"{base}.input_scale": torch.tensor(0.5)}
    return tensors, codes.double() * scale.double()


def fp8_row(base: str, weight: torch.Tensor, scale_dtype: torch.dtype = torch.bfloat16) -> tuple[Tensors, torch.Tensor]:
    """W = code * scale of the row, scales [N, 1]."""
    scale = (weight.abs().amax(1, keepdim=True) / 448).to(scale_dtype)
    codes = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {f"{base}.weight": codes, f"{base}.weight_scale": scale}, codes.double() * scale.double()


def fp8_block(
    base: str, weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensors, torch.Tensor]:
    """W = code * scale of the 128x128 block; blocks at the edges are smaller."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK), dtype=scale_dtype)
    spread = torch.empty(rows, columns, dtype=torch.float64)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
            scales[i, j] = weight[block].abs().max() / 448
            spread[block] = scales[i, j].double()
    codes = (weight.double() / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {f"{base}.weight": codes, f"{base}.weight_scale_inv": scales}, codes.double() * spread


def mixed(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Another layout for every kind of projection, as repositories that were quantised in several passes have it."""
    if base.endswith(("gate_proj", "up_proj", "q_proj")):
        return compressed_tensors_nvfp4(base, weight)
    if base.endswith(("k_proj", "out_proj")):
        return modelopt_nvfp4(base, weight)
    if base.endswith(("v_proj", "in_proj_qkv")):
        return fp8_row(base, weight, torch.float32)
    if base.endswith(("o_proj", "in_proj_z")):
        return fp8_block(base, weight, torch.bfloat16)
    return fp8_tensor(base, weight, torch.bfloat16)


LAYOUTS: dict[str, Quantise] = {
    "ct-nvfp4": compressed_tensors_nvfp4,
    "modelopt-nvfp4": modelopt_nvfp4,
    "fp8-tensor": fp8_tensor,
    "fp8-row": fp8_row,
    "fp8-block": fp8_block,
    "mixed": mixed,
}

_COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        }
    },
    "ignore": ["language_model.model.layers.0.mlp.gate_proj"],  # neither the prefix nor the module is right
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ct-nvfp4": _COMPRESSED,
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.1*"]},
    "fp8-tensor": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "fp8-row": _COMPRESSED | {"format": "float-quantized"},
    "fp8-block": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    "mixed": _COMPRESSED | {"format": "mixed-precision"},
}


def _nvfp4(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes 0 to 15 [N, K] and scales [N, K/16] of values that were scaled so that 448 * 6 is the largest."""
    blocks = scaled.reshape(scaled.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / 6).clamp(max=448).float().to(torch.float8_e4m3fn)
    divided = blocks / scales.double().unsqueeze(-1).clamp(min=2**-9)
    distance = (divided.abs().unsqueeze(-1) - E2M1[_EVEN_CODES_FIRST]).abs()
    codes = _EVEN_CODES_FIRST[distance.argmin(-1)]  # the first of equally near ones: the even code
    return (codes + 8 * (divided < 0)).reshape(scaled.shape), scales


def _e2m1(codes: torch.Tensor) -> torch.Tensor:
    return E2M1[codes % 8] * torch.where(codes >= 8, -1.0, 1.0).double()


def _per_block(scales: torch.Tensor) -> torch.Tensor:
    return scales.double().repeat_interleave(16, 1)


def _packed(codes: torch.Tensor) -> torch.Tensor:
    return (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)


def _single_experts(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors.items():
        prefix, separator, part = name.rpartition(".experts.")
        if not separator or part not in ("gate_up_proj", "down_proj"):
            yield name, tensor
            continue
        for expert, weight in enumerate(tensor):
            single = f"{prefix}.experts.{expert}."
            if part == "down_proj":
                yield f"{single}down_proj.weight", weight
            else:
                gate, up = weight.chunk(2)
                yield f"{single}gate_proj.weight", gate
                yield f"{single}up_proj.weight", up
