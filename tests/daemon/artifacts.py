"""Hand-made model directories with real headers and zero weights, which take no disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 131072,
    "hidden_size": 1024,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
"""One attention layer of 2 x 256: a page of 64 tokens in bf16 is 128 KiB. The embedding has 128 Mi elements."""

_SIZES = {"F32": 4, "BF16": 2}

Tensors = Mapping[str, tuple[str, list[int]]]
"""Name to (dtype, shape)."""


def text_tensors(config: Mapping[str, Any] = CONFIG, dtype: str = "BF16") -> dict[str, tuple[str, list[int]]]:
    """Every tensor of a dense text checkpoint, by the names and shapes that transformers gives them."""
    return {name: (dtype, shape) for name, shape in _text(config)}


def loaded_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """What the text model takes on a device: matrices at ``element_bytes``, vectors and convolutions in float32."""
    return sum(prod(shape) * (4 if _is_small(name) else element_bytes) for name, shape in _text(config))


def bytes_in_tiles() -> int:
    """What CONFIG in bf16 takes on the CPU: the embedding in float32, products in bf16 with whole tiles of 64 rows."""
    hidden, vocabulary = 1024, 131072
    small = sum(4 * prod(shape) for name, shape in _text(CONFIG) if _is_small(name))
    gdn = 1600 + 512  # in: 256 + 256 + 512 + 512 + 4 + 4 = 1544 rows; out: 512 columns
    attention = 2 * (1024 + 512) + 1024
    mlp = 3 * 512
    return small + hidden * (vocabulary * (4 + 2) + 2 * (3 * gdn + attention + 4 * mlp))


def _is_small(name: str) -> bool:
    return any(part in name for part in ("norm", "conv1d", "A_log", "dt_bias"))


def _text(config: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for index, layer_type in enumerate(config["layer_types"]):
        prefix = f"model.layers.{index}."
        yield f"{prefix}input_layernorm.weight", [hidden]
        yield f"{prefix}post_attention_layernorm.weight", [hidden]
        if layer_type == "full_attention":
            head_dim = config["head_dim"]
            query, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
            yield f"{prefix}self_attn.q_proj.weight", [2 * query, hidden]
            yield f"{prefix}self_attn.k_proj.weight", [kv, hidden]
            yield f"{prefix}self_attn.v_proj.weight", [kv, hidden]
            yield f"{prefix}self_attn.o_proj.weight", [hidden, query]
            yield f"{prefix}self_attn.q_norm.weight", [head_dim]
            yield f"{prefix}self_attn.k_norm.weight", [head_dim]
        else:
            heads = config["linear_num_value_heads"]
            key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
            value = heads * config["linear_value_head_dim"]
            yield f"{prefix}linear_attn.in_proj_qkv.weight", [2 * key + value, hidden]
            yield f"{prefix}linear_attn.in_proj_z.weight", [value, hidden]
            yield f"{prefix}linear_attn.in_proj_a.weight", [heads, hidden]
            yield f"{prefix}linear_attn.in_proj_b.weight", [heads, hidden]
            yield f"{prefix}linear_attn.out_proj.weight", [hidden, value]
            yield f"{prefix}linear_attn.conv1d.weight", [2 * key + value, 1, config["linear_conv_kernel_dim"]]
            yield f"{prefix}linear_attn.A_log", [heads]
            yield f"{prefix}linear_attn.dt_bias", [heads]
            yield f"{prefix}linear_attn.norm.weight", [config["linear_value_head_dim"]]
        yield f"{prefix}mlp.gate_proj.weight", [intermediate, hidden]
        yield f"{prefix}mlp.up_proj.weight", [intermediate, hidden]
        yield f"{prefix}mlp.down_proj.weight", [hidden, intermediate]
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]


def write_artifact(directory: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


def write_safetensors(path: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * _SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
