"""Rotary angles: axes of the pairs, frequencies, three different axes."""

from __future__ import annotations

import math

import torch

from ninferd.models.qwen3_5.config import RopeConfig
from ninferd.models.qwen3_5.positions import RotaryAngles, pair_axes

FULL_SIZE = RopeConfig(theta=1e7, rotary_dim=64, mrope_section=(11, 11, 10))


def test_axes_of_the_full_size_model() -> None:
    axes = pair_axes(FULL_SIZE)
    assert [pair for pair, axis in enumerate(axes) if axis == 0] == list(range(0, 31, 3))
    assert [pair for pair, axis in enumerate(axes) if axis == 1] == list(range(1, 32, 3))
    assert [pair for pair, axis in enumerate(axes) if axis == 2] == list(range(2, 30, 3))


def test_sections_count_the_pairs_of_each_axis() -> None:
    axes = pair_axes(RopeConfig(theta=1e7, rotary_dim=8, mrope_section=(2, 1, 1)))
    assert axes == [0, 1, 2, 0]


def test_each_pair_turns_with_its_axis() -> None:
    positions = torch.tensor([[5, 1000], [77, 0], [300, 12]])
    cos, sin = RotaryAngles(FULL_SIZE, torch.device("cpu")).cos_sin(positions)
    assert cos.dtype == sin.dtype == torch.float32
    for pair, axis in enumerate(pair_axes(FULL_SIZE)):
        for token in range(2):
            angle = float(positions[axis, token]) * 1e7 ** (-2 * pair / 64)
            assert math.isclose(float(cos[token, pair]), math.cos(angle), abs_tol=1e-4)
            assert math.isclose(float(sin[token, pair]), math.sin(angle), abs_tol=1e-4)
