"""Small geometries that a synthetic model can have: the vocabulary must hold the embedded tokenizer's 4096 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT: dict[str, Any] = {
    "vocab_size": 4224,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attn_output_gate": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
        "mrope_section": [12, 10, 10],
    },
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}
DENSE = TEXT | {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "intermediate_size": 384}
MOE = TEXT | {
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
VISION = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {key: value for key, value in DENSE.items() if key != "architectures"},
    "vision_config": {
        "model_type": "qwen3_5",
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 336,
        "num_heads": 2,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 64,
        "out_hidden_size": 256,
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "deepstack_visual_indexes": [],
    },
}


def written(directory: Path, config: dict[str, Any]) -> str:
    """The directory of a ``config.json``."""
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)
