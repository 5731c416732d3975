"""What a step has to read and to multiply at least: arithmetic on a model's configuration."""

from __future__ import annotations

from typing import Final

from ninferd.models import TextConfig

GDN_CHUNK: Final = 64
"""Tokens that the chunked gated delta rule takes at once."""


def attention_flops(config: TextConfig, rows: int, context_tokens: int) -> int:
    """Of the last ``rows`` of a context in all attention layers: products with each key and each value they see."""
    return 4 * config.attention_layer_count * config.attention.query_width * causal_pairs(rows, context_tokens)


def causal_pairs(rows: int, context_tokens: int) -> int:
    """Positions that the last ``rows`` of a context see, together: each itself and all before it."""
    return rows * (2 * context_tokens - rows + 1) // 2


def gated_delta_flops(config: TextConfig, tokens: int) -> int:
    """Of a prefill in all gated delta layers, in chunks of 64 with dense tiles; without the convolution."""
    delta = config.gated_delta
    per_head = 4 * GDN_CHUNK * (delta.key_dim + delta.value_dim) + 6 * delta.key_dim * delta.value_dim
    return config.gdn_layer_count * delta.value_heads * per_head * tokens


def matrix_weights(config: TextConfig) -> int:
    """Weights that every token is multiplied with: all layers without the head, of experts those of one token."""
    hidden, attention, delta = config.hidden_size, config.attention, config.gated_delta
    attention_layer = hidden * (attention.projected_width + attention.query_width)
    delta_layer = hidden * (delta.projected_width + delta.value_width)
    if config.moe is not None:
        moe = config.moe
        experts = moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size
        feed_forward = hidden * (3 * experts + moe.num_experts + 1)
    else:
        assert config.intermediate_size is not None
        feed_forward = 3 * hidden * config.intermediate_size
    return (
        config.attention_layer_count * attention_layer
        + config.gdn_layer_count * delta_layer
        + config.num_hidden_layers * feed_forward
    )


def prefill_flops(config: TextConfig, tokens: int) -> int:
    """Of a prompt from an empty cache to the logits of its last token; two for each multiplication and addition."""
    head = config.hidden_size * config.vocab_size
    matrices = 2 * (matrix_weights(config) * tokens + head)
    return matrices + attention_flops(config, tokens, tokens) + gated_delta_flops(config, tokens)


def distinct_experts(experts: int, chosen: int, tokens: int) -> float:
    """How many of a layer's experts so many independent tokens choose together, on average."""
    return float(experts * (1 - (1 - chosen / experts) ** tokens))
