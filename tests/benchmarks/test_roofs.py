"""What a step needs at least, against the arithmetic of published shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ninferd.benchmarks import roofs
from ninferd.benchmarks.subject import load_subject, open_source
from ninferd.models import TextConfig, text_config
from tests.weights.synthesis.geometries import DENSE, MOE, written


def config_of(geometry: str) -> TextConfig:
    return text_config(open_source(f"synthetic:{geometry}", torch.device("cpu")))


@pytest.fixture(scope="module")
def config() -> TextConfig:
    """Of the 27B."""
    return config_of("qwen3.8-27b")


def test_weights_of_all_layers(config: TextConfig) -> None:
    """64 layers: 48 x 383,221,760 and 16 x 372,244,480."""
    assert roofs.matrix_weights(config) == 24_350_556_160


def test_active_weights_of_experts() -> None:
    """The 35B-A3B: 2,436,710,400 with the eight experts of a token, without the head."""
    assert roofs.matrix_weights(config_of("qwen3.6-35b-a3b")) == 2_436_710_400


@pytest.mark.parametrize(
    ("rows", "context", "pairs"), [(1, 1, 1), (3, 3, 6), (1, 10, 10), (2, 10, 19), (4096, 131072, 528_484_352)]
)
def test_positions_that_rows_see(rows: int, context: int, pairs: int) -> None:
    assert roofs.causal_pairs(rows, context) == pairs


def test_attention_of_a_prompt(config: TextConfig) -> None:
    """393,216 for each position that a token sees: 196,608 T (T + 1) from zero."""
    assert roofs.attention_flops(config, 1, 262_144) == 393_216 * 262_144
    assert roofs.attention_flops(config, 8192, 8192) == 196_608 * 8192 * 8193


def test_gated_delta(config: TextConfig) -> None:
    """8 C 128 + 6 x 128² for each of 48 x 48 heads and layers, in chunks of 64."""
    assert roofs.gated_delta_flops(config, 10) == 10 * 48 * 48 * (8 * 64 * 128 + 6 * 128**2)


def test_a_prompt(config: TextConfig) -> None:
    """49.08 GFLOP a token, attention, and the head once."""
    tokens = 8192
    expected = (2 * 24_350_556_160 + 377_487_360) * tokens + 196_608 * tokens * (tokens + 1) + 2 * 1_271_398_400
    assert roofs.prefill_flops(config, tokens) == expected


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 8.0), (8, 57.4), (16, 102.0), (64, 222.4)])
def test_experts_that_tokens_choose(tokens: int, distinct: float) -> None:
    assert roofs.distinct_experts(256, 8, tokens) == pytest.approx(distinct, abs=0.1)


def test_weights_that_a_round_reads(tmp_path: Path) -> None:
    """All but an embedding of its own; of its rows a round reads a few."""
    subject = load_subject(f"synthetic:{written(tmp_path, DENSE)}", "cpu", lambda done, total: None)
    weights = subject.model.weights
    assert subject.round_weight_bytes(1) == subject.model.weights_bytes - weights.embedding.size_bytes
    assert subject.round_weight_bytes(8) == subject.round_weight_bytes(1)


def test_weights_that_a_round_reads_of_experts(tmp_path: Path) -> None:
    """Two of four experts for one token, a quarter of a half are left out by two."""
    subject = load_subject(f"synthetic:{written(tmp_path, MOE)}", "cpu", lambda done, total: None)
    layers, all_but_embedding = subject.model.weights.layers, subject.model.weights_bytes
    all_but_embedding -= subject.model.weights.embedding.size_bytes
    experts = 0
    for layer in layers:
        assert hasattr(layer.feed_forward, "shared")
        experts += layer.feed_forward.gate_up.size_bytes + layer.feed_forward.down.size_bytes
    assert subject.round_weight_bytes(1) == pytest.approx(all_but_embedding - experts / 2, abs=1)
    assert subject.round_weight_bytes(2) == pytest.approx(all_but_embedding - experts / 4, abs=1)
