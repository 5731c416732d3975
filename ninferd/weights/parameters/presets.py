"""Geometry of the published models, for older artifacts that name a model only, and for synthetic ones."""

from __future__ import annotations

from dataclasses import replace

from ninferd.weights.parameters.config_fields import float32_value
from ninferd.weights.parameters.geometry import (
    AttentionGeometry,
    ConvolutionGeometry,
    DraftGeometry,
    GatedDeltaGeometry,
    LayerType,
    MlpGeometry,
    ModelGeometry,
    MoeGeometry,
    TextGeometry,
    VisionGeometry,
)

PROPOSAL_ROWS = 131072
_EPS = float32_value(1e-6)
_THETA = 1e7
_POSITIONS = 262144
_VOCABULARY = 248320


def _layer_types(count: int) -> tuple[LayerType, ...]:
    return tuple("full_attention" if index % 4 == 3 else "linear_attention" for index in range(count))


_VISION = VisionGeometry(
    depth=27,
    hidden_size=1152,
    intermediate_size=4304,
    heads=16,
    patch_size=16,
    temporal_patch_size=2,
    spatial_merge_size=2,
    position_embeddings=2304,
)

_TEXT_27B = TextGeometry(
    hidden_size=5120,
    vocab_size=_VOCABULARY,
    layer_types=_layer_types(64),
    max_position_embeddings=_POSITIONS,
    tie_word_embeddings=False,
    rms_norm_eps=_EPS,
    attention=AttentionGeometry(24, 4, 256, _THETA, 0.25, (11, 11, 10)),
    gated_delta=GatedDeltaGeometry(key_heads=16, key_dim=128, value_heads=48, value_dim=128, conv_kernel=4),
    feed_forward=MlpGeometry(17408),
)

_TEXT_35B = TextGeometry(
    hidden_size=2048,
    vocab_size=_VOCABULARY,
    layer_types=_layer_types(40),
    max_position_embeddings=_POSITIONS,
    tie_word_embeddings=False,
    rms_norm_eps=_EPS,
    attention=AttentionGeometry(16, 2, 256, _THETA, 0.25, (11, 11, 10)),
    gated_delta=GatedDeltaGeometry(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4),
    feed_forward=MoeGeometry(256, 8, 512, 512),
)

DFLASH2_27B = DraftGeometry(
    hidden_size=5120,
    vocab_size=_VOCABULARY,
    layer_types=("sliding_attention",) * 5,
    intermediate_size=17408,
    heads=32,
    kv_heads=8,
    head_dim=128,
    max_position_embeddings=_POSITIONS,
    rms_norm_eps=_EPS,
    rope_theta=_THETA,
    sliding_window=2048,
    target_layer_ids=(5, 19, 33, 47, 61),
    mask_token_id=248070,
    convolution=ConvolutionGeometry(kernel_size=2, group_size=16, selector_rank=256, selector_top_k=16),
)
"""The drafter published for Qwen3.8-27B."""

DFLASH_27B = replace(
    DFLASH2_27B,
    layer_types=("sliding_attention",) * 4 + ("full_attention",),
    target_layer_ids=(1, 16, 31, 46, 61),
    convolution=None,
)
"""The drafter published for Qwen3.6-27B."""

DFLASH_35B = replace(
    DFLASH2_27B,
    hidden_size=2048,
    layer_types=("sliding_attention",) * 5 + ("full_attention",),
    intermediate_size=6144,
    sliding_window=4096,
    target_layer_ids=(1, 6, 11, 16, 22, 27, 32, 37),
    mask_token_id=248077,
    convolution=None,
)
"""The drafter published for Qwen3.6-35B-A3B."""

GEOMETRIES = {
    "qwen3.6-27b": ModelGeometry(_TEXT_27B, _VISION, True, (DFLASH_27B,), PROPOSAL_ROWS),
    "qwen3.8-27b": ModelGeometry(_TEXT_27B, _VISION, True, (DFLASH2_27B,), PROPOSAL_ROWS),
    "qwen3.6-35b-a3b": ModelGeometry(_TEXT_35B, _VISION, True, (DFLASH_35B,), PROPOSAL_ROWS),
}
"""Every component that was published for a model; ``ModelGeometry.without`` takes some away."""
