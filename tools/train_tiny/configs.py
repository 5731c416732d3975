"""The shape of ``ninfer-tiny`` and its Hugging Face configuration files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.train_tiny.special import END_OF_TEXT, IM_END, VOCAB_SIZE


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of ``ninfer-tiny`` (head sizes as in the 27B)."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 8
    full_attention_interval: int = 4
    num_heads: int = 4
    num_kv_heads: int = 1
    head_dim: int = 256
    rotary_dim: int = 64
    rope_theta: float = 1e6
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 128
    conv_kernel: int = 4
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768

    def is_full_attention(self, layer: int) -> bool:
        """Layer i holds softmax attention iff (i + 1) is a multiple of the interval."""
        return (layer + 1) % self.full_attention_interval == 0


def text_config(shape: Shape) -> dict[str, Any]:
    """Returns ``config.json`` of a text-only export: the text keys at top level."""
    layers = range(shape.num_layers)
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position_embeddings,
        "initializer_range": 0.02,
        "rms_norm_eps": shape.rms_norm_eps,
        "use_cache": True,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "output_gate_type": "swish",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
            "mrope_interleaved": True,
            "mrope_section": list(shape.mrope_section),
        },
        "linear_conv_kernel_dim": shape.conv_kernel,
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_head_dim,
        "linear_num_key_heads": shape.linear_key_heads,
        "linear_num_value_heads": shape.linear_value_heads,
        "layer_types": ["full_attention" if shape.is_full_attention(i) else "linear_attention" for i in layers],
        "full_attention_interval": shape.full_attention_interval,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "dtype": "bfloat16",
    }


def generation_config() -> dict[str, Any]:
    """Returns ``generation_config.json``: both end tokens, and gentle sampling defaults for a very small model."""
    return {
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": True,
        "temperature": 0.3,
        "top_k": 20,
        "top_p": 0.95,
    }


def write(directory: Path, shape: Shape) -> None:
    """Writes both configuration files into ``directory``."""
    for name, content in (("config.json", text_config(shape)), ("generation_config.json", generation_config())):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
