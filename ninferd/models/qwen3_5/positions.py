"""Partial interleaved MRoPE: rotary angles from positions on three axes."""

from __future__ import annotations

import torch

from ninferd.models.qwen3_5.config import RopeConfig


class RotaryAngles:
    """Cosines and sines of pair j of a head: position on the pair's axis times theta^(-2j / rotary_dim)."""

    def __init__(self, rope: RopeConfig, device: torch.device) -> None:
        exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
        self._frequencies = (1.0 / rope.theta**exponents).to(device)
        self._axes = torch.tensor(pair_axes(rope), device=device)

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``positions`` int64 [3, N] to float32 cos and sin ``[N, rotary_dim / 2]``, computed in float32."""
        angles = positions.T[:, self._axes].float() * self._frequencies
        return angles.cos(), angles.sin()


def pair_axes(rope: RopeConfig) -> list[int]:
    """Axis (0: T, 1: H, 2: W) of each rotary pair: H and W take every third pair up to their section's end."""
    _, height, width = rope.mrope_section
    axes = []
    for pair in range(rope.rotary_dim // 2):
        if pair % 3 == 1 and pair < 3 * height:
            axes.append(1)
        elif pair % 3 == 2 and pair < 3 * width:
            axes.append(2)
        else:
            axes.append(0)
    return axes
