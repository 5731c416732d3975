"""The text model's configuration, read from a Hugging Face ``config.json`` without relying on anyone's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernels_numba.shapes import AttentionShape, GatedDeltaShape
from ninferd.weights.json_table import JsonTable
from ninferd.weights.model_types import MOE_TYPES, type_problem

LayerType = Literal["linear_attention", "full_attention"]

MAX_SIZE = 1 << 24
MAX_LAYERS = 1024


@dataclass(frozen=True)
class RopeConfig:
    """Partial interleaved MRoPE: the first ``rotary_dim`` dimensions of a head turn."""

    theta: float
    rotary_dim: int
    mrope_section: tuple[int, int, int]  # pairs of the T, H and W axes


@dataclass(frozen=True)
class MoeConfig:
    """Sizes of the mixture of experts that takes the place of the MLP."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class TextConfig:
    """Everything that fixes the text model's tensors and arithmetic."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerType, ...]
    attention: AttentionShape
    gated_delta: GatedDeltaShape
    rope: RopeConfig
    intermediate_size: int | None  # None exactly when moe is set
    moe: MoeConfig | None
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def attention_layer_count(self) -> int:
        return self.layer_types.count("full_attention")

    @property
    def gdn_layer_count(self) -> int:
        return self.layer_types.count("linear_attention")

    @classmethod
    def from_json(cls, config: dict[str, Any], source: Path) -> TextConfig:
        """Read a ``config.json``, nested (``text_config``) or flat. Raises InputError naming file and key."""
        top = JsonTable(config, str(source))
        nested = "text_config" in top
        text = top.table("text_config") if nested else top
        model_type = text.string("model_type")
        if problem := type_problem(model_type):
            raise text.error("model_type", problem)
        is_moe = model_type in MOE_TYPES
        _require_known_variants(text)
        attention, rope = _attention(text)
        return cls(
            model_type=model_type,
            vocab_size=text.integer("vocab_size", MAX_SIZE),
            hidden_size=text.integer("hidden_size", MAX_SIZE),
            layer_types=_layer_types(text),
            attention=attention,
            gated_delta=_gated_delta(text),
            rope=rope,
            intermediate_size=None if is_moe else text.integer("intermediate_size", MAX_SIZE),
            moe=_moe(text) if is_moe else None,
            rms_norm_eps=text.number("rms_norm_eps", 0.1),
            max_position_embeddings=text.integer("max_position_embeddings", MAX_SIZE),
            # Hugging Face's wrapper ties by the outer key; older exports have only the inner one.
            tie_word_embeddings=(top if "tie_word_embeddings" in top else text).boolean("tie_word_embeddings"),
        )


def _require_known_variants(text: JsonTable) -> None:
    """Refuse what would need other arithmetic."""
    if text.string("hidden_act") != "silu":
        raise text.error("hidden_act", f"is {text.string('hidden_act')!r}; only 'silu' is supported")
    for key, usual in (("attention_bias", False), ("attn_output_gate", True)):
        if key in text and text.boolean(key) != usual:
            raise text.error(key, f"must be {str(usual).lower()} in this model family")
    if "output_gate_type" in text and text.string("output_gate_type") not in ("swish", "silu"):
        raise text.error("output_gate_type", "must be 'swish' in this model family")


def _layer_types(text: JsonTable) -> tuple[LayerType, ...]:
    count = text.integer("num_hidden_layers", MAX_LAYERS)
    if "layer_types" not in text:
        interval = text.integer("full_attention_interval", MAX_LAYERS)
        return tuple("linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(count))
    layer_types: list[LayerType] = []
    for name in text.items("layer_types"):
        if name not in ("linear_attention", "full_attention"):
            raise text.error("layer_types", f"holds {name!r}; known: 'linear_attention', 'full_attention'")
        layer_types.append(name)
    if len(layer_types) != count:
        raise text.error("layer_types", f"has {len(layer_types)} entries, but num_hidden_layers is {count}")
    return tuple(layer_types)


def _attention(text: JsonTable) -> tuple[AttentionShape, RopeConfig]:
    heads = text.integer("num_attention_heads", MAX_SIZE)
    kv_heads = text.integer("num_key_value_heads", MAX_SIZE)
    head_dim = text.integer("head_dim", MAX_SIZE)
    if heads % kv_heads:
        raise text.error("num_attention_heads", f"({heads}) must be a multiple of num_key_value_heads ({kv_heads})")
    rope = _rope(text, head_dim)
    return AttentionShape(heads, kv_heads, head_dim, rope.rotary_dim), rope


def _rope(text: JsonTable, head_dim: int) -> RopeConfig:
    """``rope_parameters``, or the older spelling: ``rope_theta`` beside ``rope_scaling``."""
    if "rope_parameters" in text:
        rope = text.table("rope_parameters")
        theta_table = rope
    else:
        rope = text.table("rope_scaling")
        theta_table = text
    rope_type = rope.string("rope_type" if "rope_type" in rope else "type")
    if rope_type not in ("default", "mrope"):
        raise rope.error("rope_type", f"{rope_type!r} is not available in this build; use 'default'")
    fraction_table = rope if "partial_rotary_factor" in rope else text
    rotary_dim = int(head_dim * fraction_table.number("partial_rotary_factor", 1.0))
    section = rope.items("mrope_section")
    if (
        len(section) != 3
        or any(type(pairs) is not int or pairs < 0 for pairs in section)
        or 2 * sum(section) != rotary_dim
    ):
        raise rope.error("mrope_section", f"must be three counts with the sum {rotary_dim // 2}, half the rotary dims")
    if "mrope_interleaved" in rope and not rope.boolean("mrope_interleaved"):
        raise rope.error("mrope_interleaved", "must be true in this model family")
    theta = theta_table.number("rope_theta", 1e12)
    return RopeConfig(theta, rotary_dim, (section[0], section[1], section[2]))


def _gated_delta(text: JsonTable) -> GatedDeltaShape:
    key_heads = text.integer("linear_num_key_heads", MAX_SIZE)
    value_heads = text.integer("linear_num_value_heads", MAX_SIZE)
    if value_heads % key_heads:
        raise text.error(
            "linear_num_value_heads", f"({value_heads}) must be a multiple of linear_num_key_heads ({key_heads})"
        )
    return GatedDeltaShape(
        key_heads,
        value_heads,
        text.integer("linear_key_head_dim", MAX_SIZE),
        text.integer("linear_value_head_dim", MAX_SIZE),
        text.integer("linear_conv_kernel_dim", 64, minimum=2),
    )


def _moe(text: JsonTable) -> MoeConfig:
    num_experts = text.integer("num_experts", MAX_SIZE)
    return MoeConfig(
        num_experts,
        text.integer("num_experts_per_tok", num_experts),
        text.integer("moe_intermediate_size", MAX_SIZE),
        text.integer("shared_expert_intermediate_size", MAX_SIZE),
    )
