"""Tensors of a checkpoint replaced by random quantised ones, in the layouts that are published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tests.weights.convert.checkpoint import Checkpoint

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Nvfp4:
    """Codes ``[N, K/2]`` and scale words ``[N, K/16]`` of one matrix, and its divisor."""

    codes: Bytes
    scales: Bytes
    divisor: float


def _random_nvfp4(checkpoint: Checkpoint, prefix: str, divisor: float) -> Nvfp4:
    rows, columns = checkpoint.tensors.pop(f"{prefix}.weight").shape
    generator = np.random.default_rng(len(prefix) * rows)
    codes = generator.integers(0, 256, (rows, columns // 2), np.uint8)
    return Nvfp4(codes, generator.integers(0, 0x7F, (rows, columns // 16), np.uint8), divisor)


def compressed_tensors(checkpoint: Checkpoint, prefix: str, divisor: float, activation: float | None = None) -> Nvfp4:
    """Layout ``nvfp4-pack-quantized``: global scales divide."""
    matrix = _random_nvfp4(checkpoint, prefix, divisor)
    checkpoint.tensors[f"{prefix}.weight_packed"] = torch.from_numpy(matrix.codes)
    checkpoint.tensors[f"{prefix}.weight_scale"] = torch.from_numpy(matrix.scales).view(torch.float8_e4m3fn)
    checkpoint.tensors[f"{prefix}.weight_global_scale"] = torch.tensor([divisor])
    if activation is not None:
        checkpoint.tensors[f"{prefix}.input_global_scale"] = torch.tensor([activation])
    return matrix


def modelopt(checkpoint: Checkpoint, prefix: str, factor: float, activation_factor: float) -> Nvfp4:
    """ModelOpt's layout: global scales multiply."""
    matrix = _random_nvfp4(checkpoint, prefix, float(np.float32(1 / np.float64(np.float32(factor)))))
    checkpoint.tensors[f"{prefix}.weight"] = torch.from_numpy(matrix.codes)
    checkpoint.tensors[f"{prefix}.weight_scale"] = torch.from_numpy(matrix.scales).view(torch.float8_e4m3fn)
    checkpoint.tensors[f"{prefix}.weight_scale_2"] = torch.tensor(factor)
    checkpoint.tensors[f"{prefix}.input_scale"] = torch.tensor(activation_factor)
    return matrix


def fp8_codes(checkpoint: Checkpoint, prefix: str) -> Bytes:
    """Replaces the weight by random E4M3 words and returns them; the caller adds scales."""
    rows, columns = checkpoint.tensors[f"{prefix}.weight"].shape
    codes = np.random.default_rng(rows).integers(0, 256, (rows, columns), np.uint8) & np.uint8(0xF7)
    checkpoint.tensors[f"{prefix}.weight"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return codes


def fp8_channel(checkpoint: Checkpoint, prefix: str) -> tuple[Bytes, NDArray[np.uint16]]:
    """FP8 with a bfloat16 scale per row; returns codes and words of the scales."""
    codes = fp8_codes(checkpoint, prefix)
    scales = (torch.rand(len(codes), 1) * 0.01 + 0.001).bfloat16()
    checkpoint.tensors[f"{prefix}.weight_scale"] = scales
    words: NDArray[np.uint16] = scales.view(torch.uint16).numpy().reshape(-1)
    return codes, words
