"""Small Qwen3.5 checkpoints, made with transformers, the independent implementation that ours is compared with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "use_cache": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
"""The dense configuration of the golden values."""

MOE: dict[str, Any] = {key: value for key, value in TEXT.items() if key != "intermediate_size"} | {
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
"""The mixture-of-experts configuration of the golden values."""

VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 96,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "initializer_range": 0.02,
}


def nested(text_config: dict[str, Any]) -> dict[str, Any]:
    """``text_config`` inside the vision-language form of ``config.json``."""
    return {
        "model_type": "qwen3_5",
        "text_config": text_config,
        "vision_config": VISION | {"out_hidden_size": text_config["hidden_size"]},
        "image_token_id": 500,
        "video_token_id": 501,
        "vision_start_token_id": 502,
        "vision_end_token_id": 503,
        "tie_word_embeddings": text_config["tie_word_embeddings"],
    }


def build_transformers_model(config: dict[str, Any]) -> Any:
    """The transformers model of a ``config.json``, in float32 and eval mode, with whatever weights it starts with."""
    import transformers

    classes = {
        "qwen3_5_text": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
        "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
        "qwen3_5": (transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
    }
    config_class, model_class = classes[config["model_type"]]
    return model_class(config_class(**config)).float().eval()


def fill_deterministic(model: Any) -> None:
    """Fill every parameter by the hash of its rank in name order and its element index (no generator involved)."""
    parameters = dict(model.named_parameters())
    for rank, name in enumerate(sorted(parameters)):
        parameter = parameters[name]
        u = hash_uniform(rank, parameter.numel())
        values = _scaled(name, u, parameter.shape[-1]).reshape(tuple(parameter.shape))
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def hash_uniform(rank: int, count: int) -> NDArray[np.float64]:
    """``count`` values in [-1, 1) of the stream ``rank``."""
    x = np.arange(1, count + 1, dtype=np.uint32) + np.uint32(1000003 * (rank + 1))
    x *= np.uint32(2654435761)
    x ^= x >> np.uint32(15)
    x *= np.uint32(2246822519)
    x ^= x >> np.uint32(13)
    return x.astype(np.float64) / 2**31 - 1


def _scaled(name: str, u: NDArray[np.float64], fan_in: int) -> NDArray[np.float64]:
    if name.endswith("A_log"):
        return np.log(8 + 7.5 * u)
    if name.endswith("dt_bias"):
        return 0.5 * u
    if name.endswith("linear_attn.norm.weight") or ("visual" in name and "norm" in name and name.endswith("weight")):
        return 1 + 0.2 * u
    if "norm" in name and name.endswith("weight"):
        return 0.2 * u
    if name.endswith("bias"):
        return 0.1 * u
    if "conv1d" in name:
        return 0.5 * u
    if name.endswith("patch_embed.proj.weight"):
        return 1.5 * u / math.sqrt(1536)
    return 1.5 * u / math.sqrt(fan_in)


def fill_random(model: Any, seed: int) -> None:
    """Fill every parameter so that no norm, gate or decay is at a special value."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        u = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
        values = _scaled(name, u.flatten().numpy(), parameter.shape[-1]).reshape(tuple(parameter.shape))
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def write_random_checkpoint(directory: Path, config: dict[str, Any], seed: int) -> Any:
    """Save a randomly filled model of ``config`` (flat or nested, see TEXT, MOE, nested) and return it."""
    model = build_transformers_model(config)
    fill_random(model, seed)
    model.save_pretrained(directory)
    return model
