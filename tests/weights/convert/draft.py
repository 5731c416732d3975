"""A small DFlash2 checkpoint for the model of ``checkpoint``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.weights.convert.checkpoint import HIDDEN, VOCABULARY

CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "num_target_layers": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "layer_types": ["full_attention"],
    "dflash_config": {
        "target_layer_ids": [0, 1],
        "mask_token_id": 3,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 64,
        "selector_top_k": 4,
    },
}
LAYER = {
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
    "self_attn.q_proj.weight": (256, HIDDEN),
    "self_attn.k_proj.weight": (128, HIDDEN),
    "self_attn.v_proj.weight": (128, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, 256),
    "self_attn.q_norm.weight": (128,),
    "self_attn.k_norm.weight": (128,),
    "mlp.gate_proj.weight": (256, HIDDEN),
    "mlp.up_proj.weight": (256, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, 256),
    "attention_conv.base_kernel": (2, 2, HIDDEN),
    "attention_conv.kernel_projection.weight": (32, HIDDEN),
    "mlp_conv.base_kernel": (2, 2, HIDDEN),
    "mlp_conv.kernel_projection.weight": (32, HIDDEN),
}
REST = {
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "candidate_selector.hidden_projection.weight": (64, HIDDEN),
    "candidate_selector.predecessor_codebook": (VOCABULARY, 64),
    "candidate_selector.successor_codebook": (VOCABULARY, 64),
}


def write_draft(directory: Path) -> dict[str, torch.Tensor]:
    """Writes the checkpoint and returns its tensors."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shapes = REST | {f"layers.0.{name}": shape for name, shape in LAYER.items()}
    generator = torch.Generator().manual_seed(1)
    tensors = {name: (torch.randn(shape, generator=generator) * 0.05).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return tensors
