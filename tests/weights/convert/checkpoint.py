"""A small Hugging Face checkpoint with every component, and what its tensors mean, both written down by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Values = NDArray[np.float32]

HIDDEN, VOCABULARY, HEADS, HEAD_DIM, KEY, VALUE, WIDTH, EXPERTS = 128, 512, 2, 128, 128, 256, 256, 4
T = "model.language_model."
TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [6, 5, 5]},
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mtp_num_hidden_layers": 1,
    "eos_token_id": 1,
}
MOE = {key: value for key, value in TEXT.items() if key != "intermediate_size"} | {
    "model_type": "qwen3_5_moe_text",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
VISION = {
    "depth": 1,
    "hidden_size": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 96,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 64,
}


class Checkpoint:
    """Tensors by Hugging Face name, random bfloat16 values unless replaced before ``write``."""

    def __init__(self, *, is_moe: bool = False, is_tied: bool = False, vocabulary: int = VOCABULARY) -> None:
        self.is_moe = is_moe
        text = (MOE if is_moe else TEXT) | {"tie_word_embeddings": is_tied, "vocab_size": vocabulary}
        self.config: dict[str, Any] = {
            "architectures": [f"Qwen3_5{'Moe' if is_moe else ''}ForConditionalGeneration"],
            "model_type": "qwen3_5_moe" if is_moe else "qwen3_5",
            "text_config": text,
            "vision_config": VISION,
            "tie_word_embeddings": is_tied,
        }
        self.tensors: dict[str, torch.Tensor] = {}
        generator = torch.Generator().manual_seed(0)
        for name, shape in self._shapes(vocabulary, is_tied):
            self.tensors[name] = (torch.randn(shape, generator=generator) * 0.05).bfloat16()

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, directory / "model.safetensors")
        return directory

    def __getitem__(self, name: str) -> Values:
        values: Values = self.tensors[name].float().numpy()
        return values

    def matrix(self, parameter: str) -> Values:
        """What the parameter is, by the documented map."""
        head, _, rest = parameter.partition("/")
        if head == "text" and not rest.startswith("layers/"):
            names = {"token_embedding": f"{T}embed_tokens.weight", "output_head": "lm_head.weight"}
            return self[names[rest] if names[rest] in self.tensors else names["token_embedding"]]
        if parameter == "mtp/input_projection":
            return self["mtp.fc.weight"]
        if head == "vision":
            return self._vision(rest)
        _, layer, part, *more = rest.split("/")
        prefix = f"{T}layers.{layer}." if head == "text" else f"mtp.layers.{layer}."
        return self._layer(prefix, part, more)

    def _layer(self, prefix: str, part: str, more: list[str]) -> Values:
        name = more[-1]
        if part == "attention":
            if name in ("query", "gate"):
                heads = self[f"{prefix}self_attn.q_proj.weight"].reshape(HEADS, 2, HEAD_DIM, HIDDEN)
                return heads[:, 0 if name == "query" else 1].reshape(-1, HIDDEN)
            return self[
                prefix
                + {"key": "self_attn.k_proj.weight", "value": "self_attn.v_proj.weight"}.get(
                    name, "self_attn.o_proj.weight"
                )
            ]
        if part == "gdn":
            rows = {"query": (0, KEY), "key": (KEY, 2 * KEY), "value": (2 * KEY, 2 * KEY + VALUE)}
            if name in rows:
                return self[f"{prefix}linear_attn.in_proj_qkv.weight"][slice(*rows[name])]
            plain = {"z": "in_proj_z", "a_projection": "in_proj_a", "b_projection": "in_proj_b", "output": "out_proj"}
            return self[f"{prefix}linear_attn.{plain[name]}.weight"]
        if part == "mlp":
            return self[f"{prefix}mlp.{name}_proj.weight"]
        if name in ("router", "shared_score"):
            return self[f"{prefix}mlp.{'gate' if name == 'router' else 'shared_expert_gate'}.weight"]
        if more[0] == "shared":
            return self[f"{prefix}mlp.shared_expert.{name}_proj.weight"]
        expert = int(more[1])
        if name == "down":
            down: Values = self[f"{prefix}mlp.experts.down_proj"][expert]
            return down
        bank = self[f"{prefix}mlp.experts.gate_up_proj"][expert]
        half: Values = bank[: len(bank) // 2] if name == "gate" else bank[len(bank) // 2 :]
        return half

    def _vision(self, rest: str) -> Values:
        if rest == "patch_embedding":
            return self["model.visual.patch_embed.proj.weight"].reshape(64, 1536)
        if rest.startswith("merger/"):
            return self[f"model.visual.merger.linear_{rest[-3:]}.weight"]
        block = "model.visual.blocks.0."
        part = rest.split("/", 2)[2]
        rows = {"attention/query": (0, 64), "attention/key": (64, 128), "attention/value": (128, 192)}
        if part in rows:
            return self[f"{block}attn.qkv.weight"][slice(*rows[part])]
        return self[
            f"{block}attn.proj.weight" if part == "attention/output" else f"{block}mlp.linear_{part[-3:]}.weight"
        ]

    def _shapes(self, vocabulary: int, is_tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{T}embed_tokens.weight", (vocabulary, HIDDEN)
        if not is_tied:
            yield "lm_head.weight", (vocabulary, HIDDEN)
        yield f"{T}norm.weight", (HIDDEN,)
        for name, shape in (GATED_DELTA | self._feed_forward()).items():
            yield f"{T}layers.0.{name}", shape
        for name, shape in (ATTENTION | self._feed_forward()).items():
            yield f"{T}layers.1.{name}", shape
            yield f"mtp.layers.0.{name}", shape
        yield "mtp.fc.weight", (HIDDEN, 2 * HIDDEN)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            yield f"mtp.{name}.weight", (HIDDEN,)
        yield from _vision_shapes()

    def _feed_forward(self) -> dict[str, tuple[int, ...]]:
        norms: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (HIDDEN,)}
        norms["post_attention_layernorm.weight"] = (HIDDEN,)
        return norms | (EXPERT_BANKS if self.is_moe else MLP)


GATED_DELTA: dict[str, tuple[int, ...]] = {
    "linear_attn.in_proj_qkv.weight": (2 * KEY + VALUE, HIDDEN),
    "linear_attn.in_proj_z.weight": (VALUE, HIDDEN),
    "linear_attn.in_proj_a.weight": (2, HIDDEN),
    "linear_attn.in_proj_b.weight": (2, HIDDEN),
    "linear_attn.conv1d.weight": (2 * KEY + VALUE, 1, 4),
    "linear_attn.A_log": (2,),
    "linear_attn.dt_bias": (2,),
    "linear_attn.norm.weight": (128,),
    "linear_attn.out_proj.weight": (HIDDEN, VALUE),
}
ATTENTION: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (2 * HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj.weight": (HEAD_DIM, HIDDEN),
    "self_attn.v_proj.weight": (HEAD_DIM, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.q_norm.weight": (HEAD_DIM,),
    "self_attn.k_norm.weight": (HEAD_DIM,),
}
MLP: dict[str, tuple[int, ...]] = {
    "mlp.gate_proj.weight": (WIDTH, HIDDEN),
    "mlp.up_proj.weight": (WIDTH, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, WIDTH),
}
EXPERT_BANKS: dict[str, tuple[int, ...]] = {
    "mlp.gate.weight": (EXPERTS, HIDDEN),
    "mlp.experts.gate_up_proj": (EXPERTS, 256, HIDDEN),
    "mlp.experts.down_proj": (EXPERTS, HIDDEN, 128),
    "mlp.shared_expert.gate_proj.weight": (128, HIDDEN),
    "mlp.shared_expert.up_proj.weight": (128, HIDDEN),
    "mlp.shared_expert.down_proj.weight": (HIDDEN, 128),
    "mlp.shared_expert_gate.weight": (1, HIDDEN),
}


def _vision_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    prefix, block = "model.visual.", "model.visual.blocks.0."
    yield f"{prefix}patch_embed.proj.weight", (64, 3, 2, 16, 16)
    yield f"{prefix}patch_embed.proj.bias", (64,)
    yield f"{prefix}pos_embed.weight", (64, 64)
    weights = {"attn.qkv": (192, 64), "attn.proj": (64, 64), "mlp.linear_fc1": (96, 64), "mlp.linear_fc2": (64, 96)}
    for name, shape in weights.items():
        yield f"{block}{name}.weight", shape
        yield f"{block}{name}.bias", shape[:1]
    for name in (f"{block}norm1", f"{block}norm2", f"{prefix}merger.norm"):
        yield f"{name}.weight", (64,)
        yield f"{name}.bias", (64,)
    for name, shape in (("linear_fc1", (256, 256)), ("linear_fc2", (HIDDEN, 256))):
        yield f"{prefix}merger.{name}.weight", shape
        yield f"{prefix}merger.{name}.bias", shape[:1]
