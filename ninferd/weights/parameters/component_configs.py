"""Component configurations in the spelling of an artifact's directory: read with every check, and written.

Members are closed: one that is unknown, missing or out of place is an error, since it would change the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.json_table import JsonTable, shown
from ninferd.weights.parameters.config_fields import (
    MAX_KERNEL,
    MAX_LAYERS,
    MAX_SIZE,
    float32_value,
    grouped_heads,
    layer_types,
)
from ninferd.weights.parameters.draft_config import DraftTarget, draft_config, draft_geometry
from ninferd.weights.parameters.geometry import (
    AttentionGeometry,
    DraftKind,
    GatedDeltaGeometry,
    LayerType,
    MlpGeometry,
    ModelGeometry,
    MoeGeometry,
    TextGeometry,
    VisionGeometry,
)

MAX_EXPERTS_IN_ALL = 1 << 17  # over all layers; the largest public member of the family has 47,104

_TEXT_MEMBERS = (
    "architectures",
    "model_type",
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rms_norm_eps",
    "layer_types",
)
ATTENTION_SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim")
_ROPE_MEMBERS = ("rope_theta", "partial_rotary_factor", "mrope_section")
GATED_DELTA_SIZES = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
MLP_SIZES = ("intermediate_size",)
MOE_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
VISION_SIZES = {
    "depth": "depth",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "heads",
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "spatial_merge_size": "spatial_merge_size",
    "num_position_embeddings": "position_embeddings",
}
_DRAFTS: tuple[DraftKind, ...] = ("dflash", "dflash2")


def model_geometry(
    configs: Mapping[str, Mapping[str, Any]], where: str, proposal_rows: int | None = None
) -> ModelGeometry:
    """Geometry of the components ``configs`` (component id to its ``config``); components of other names are left out.

    ``where`` names the file. Raises InputError naming file, component and key.
    """
    if "text" not in configs:
        raise InputError(f"{where}: has no text component")
    has_mtp = "mtp" in configs
    text = text_geometry(JsonTable(configs["text"], f"{where}: text"), has_mtp=has_mtp)
    if has_mtp:
        mtp = JsonTable(configs["mtp"], f"{where}: mtp")
        mtp.require_only(["architectures"])
        mtp.require_equal("architectures", [_architecture(text.is_moe, "MTP")])
    vision = None
    if "vision" in configs:
        vision = vision_geometry(JsonTable(configs["vision"], f"{where}: vision"), is_moe=text.is_moe)
    if proposal_rows is not None and not 0 < proposal_rows <= text.vocab_size:
        raise InputError(
            f"{where}: text: proposal rows must be from 1 to vocab_size ({text.vocab_size}), not {proposal_rows}"
        )
    target = DraftTarget(text.hidden_size, text.vocab_size, len(text.layer_types))
    drafts = tuple(
        draft_geometry(JsonTable(configs[kind], f"{where}: {kind}"), kind, target)
        for kind in _DRAFTS
        if kind in configs
    )
    return ModelGeometry(text, vision, has_mtp, drafts, proposal_rows)


def component_configs_of(geometry: ModelGeometry) -> dict[str, dict[str, Any]]:
    """The ``config`` of every component of ``geometry``: the inverse of ``model_geometry``."""
    text = geometry.text
    configs = {"text": _text_config(text)}
    if geometry.vision is not None:
        configs["vision"] = _vision_config(geometry.vision, is_moe=text.is_moe)
    if geometry.has_mtp:
        configs["mtp"] = {"architectures": [_architecture(text.is_moe, "MTP")]}
    for draft in geometry.drafts:
        configs[draft.kind] = draft_config(draft)
    return configs


def text_geometry(table: JsonTable, *, has_mtp: bool) -> TextGeometry:
    """Read a text component. Raises InputError naming the key."""
    is_moe = _is_moe(table)
    types: tuple[LayerType, ...] = layer_types(table, ("linear_attention", "full_attention"))
    has_attention = has_mtp or "full_attention" in types
    has_gated_delta = "linear_attention" in types
    table.require_only(
        (
            *_TEXT_MEMBERS,
            *((*ATTENTION_SIZES, "rope_parameters") if has_attention else ()),
            *(GATED_DELTA_SIZES if has_gated_delta else ()),
            *(MOE_SIZES if is_moe else MLP_SIZES),
        )
    )
    return TextGeometry(
        hidden_size=table.integer("hidden_size", MAX_SIZE),
        vocab_size=table.integer("vocab_size", MAX_SIZE),
        layer_types=types,
        max_position_embeddings=table.integer("max_position_embeddings", MAX_SIZE),
        tie_word_embeddings=table.boolean("tie_word_embeddings"),
        rms_norm_eps=table.number("rms_norm_eps", 0.1),
        attention=_attention(table) if has_attention else None,
        gated_delta=_gated_delta(table) if has_gated_delta else None,
        feed_forward=_moe(table, len(types)) if is_moe else _mlp(table),
    )


def vision_geometry(table: JsonTable, *, is_moe: bool) -> VisionGeometry:
    """Read a vision component. Raises InputError naming the key."""
    table.require_only(("model_type", *VISION_SIZES))
    table.require_equal("model_type", _vision_type(is_moe))
    limits = {"depth": MAX_LAYERS}
    sizes = {name: table.integer(key, limits.get(key, MAX_SIZE)) for key, name in VISION_SIZES.items()}
    vision = VisionGeometry(**sizes)
    if vision.hidden_size % vision.heads or vision.hidden_size // vision.heads % 4:
        raise table.error(
            "hidden_size", f"({vision.hidden_size}) must be num_heads ({vision.heads}) times a multiple of 4"
        )
    if isqrt(vision.position_embeddings) ** 2 != vision.position_embeddings:
        raise table.error("num_position_embeddings", f"must be a square, not {vision.position_embeddings}")
    return vision


def _is_moe(table: JsonTable) -> bool:
    architectures = table.items("architectures")
    for is_moe in (False, True):
        if architectures == [_architecture(is_moe, "ForCausalLM")]:
            table.require_equal("model_type", _text_type(is_moe))
            return is_moe
    raise table.error(
        "architectures",
        f"must be [{_architecture(False, 'ForCausalLM')!r}] or [{_architecture(True, 'ForCausalLM')!r}], "
        f"not {shown(architectures)}",
    )


def _attention(table: JsonTable) -> AttentionGeometry:
    heads, kv_heads = grouped_heads(table, "num_attention_heads", "num_key_value_heads")
    head_dim = table.integer("head_dim", MAX_SIZE)
    rope = table.table("rope_parameters")
    rope.require_only(_ROPE_MEMBERS)
    factor = rope.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * factor)
    if rotary_dim % 2 or not rotary_dim:
        raise rope.error(
            "partial_rotary_factor", f"({factor}) must make an even part of head_dim ({head_dim}), not {rotary_dim}"
        )
    theta = rope.number("rope_theta", 1e12)
    return AttentionGeometry(heads, kv_heads, head_dim, theta, factor, _mrope_section(rope, rotary_dim // 2))


def _mrope_section(rope: JsonTable, pairs: int) -> tuple[int, int, int]:
    """Pairs per axis; pair r turns by axis r % 3 as long as that axis has pairs left, then by axis 0."""
    section = rope.integers("mrope_section", MAX_SIZE)
    if len(section) != 3 or sum(section) != pairs:
        raise rope.error("mrope_section", f"must be three counts with the sum {pairs}, not {shown(list(section))}")
    for axis in (1, 2):
        room = (pairs - axis + 2) // 3  # pairs r with r % 3 == axis
        if section[axis] > room:
            raise rope.error(
                "mrope_section", f"gives axis {axis} {section[axis]} pairs; of {pairs} interleaved ones it has {room}"
            )
    return section[0], section[1], section[2]


def _gated_delta(table: JsonTable) -> GatedDeltaGeometry:
    value_heads, key_heads = grouped_heads(table, "linear_num_value_heads", "linear_num_key_heads")
    return GatedDeltaGeometry(
        key_heads=key_heads,
        key_dim=table.integer("linear_key_head_dim", MAX_SIZE),
        value_heads=value_heads,
        value_dim=table.integer("linear_value_head_dim", MAX_SIZE),
        conv_kernel=table.integer("linear_conv_kernel_dim", MAX_KERNEL, minimum=2),
    )


def _mlp(table: JsonTable) -> MlpGeometry:
    return MlpGeometry(table.integer("intermediate_size", MAX_SIZE))


def _moe(table: JsonTable, layers: int) -> MoeGeometry:
    experts = table.integer("num_experts", MAX_EXPERTS_IN_ALL // layers)
    return MoeGeometry(
        experts=experts,
        experts_per_token=table.integer("num_experts_per_tok", experts),
        intermediate_size=table.integer("moe_intermediate_size", MAX_SIZE),
        shared_intermediate_size=table.integer("shared_expert_intermediate_size", MAX_SIZE),
    )


def _text_config(text: TextGeometry) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [_architecture(text.is_moe, "ForCausalLM")],
        "model_type": _text_type(text.is_moe),
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_hidden_layers": len(text.layer_types),
        "max_position_embeddings": text.max_position_embeddings,
        "tie_word_embeddings": text.tie_word_embeddings,
        "rms_norm_eps": float32_value(text.rms_norm_eps),
        "layer_types": list(text.layer_types),
    }
    if text.attention is not None:
        config |= {
            "num_attention_heads": text.attention.heads,
            "num_key_value_heads": text.attention.kv_heads,
            "head_dim": text.attention.head_dim,
            "rope_parameters": {
                "rope_theta": float32_value(text.attention.rope_theta),
                "partial_rotary_factor": float32_value(text.attention.partial_rotary_factor),
                "mrope_section": list(text.attention.mrope_section),
            },
        }
    if text.gated_delta is not None:
        config |= {
            "linear_num_key_heads": text.gated_delta.key_heads,
            "linear_key_head_dim": text.gated_delta.key_dim,
            "linear_num_value_heads": text.gated_delta.value_heads,
            "linear_value_head_dim": text.gated_delta.value_dim,
            "linear_conv_kernel_dim": text.gated_delta.conv_kernel,
        }
    if isinstance(text.feed_forward, MlpGeometry):
        return config | {"intermediate_size": text.feed_forward.intermediate_size}
    return config | {
        "num_experts": text.feed_forward.experts,
        "num_experts_per_tok": text.feed_forward.experts_per_token,
        "moe_intermediate_size": text.feed_forward.intermediate_size,
        "shared_expert_intermediate_size": text.feed_forward.shared_intermediate_size,
    }


def _vision_config(vision: VisionGeometry, *, is_moe: bool) -> dict[str, Any]:
    return {"model_type": _vision_type(is_moe)} | {key: getattr(vision, name) for key, name in VISION_SIZES.items()}


def _architecture(is_moe: bool, kind: str) -> str:
    return f"Qwen3_5{'Moe' if is_moe else ''}{kind}"


def _text_type(is_moe: bool) -> str:
    return f"qwen3_5{'_moe' if is_moe else ''}_text"


def _vision_type(is_moe: bool) -> str:
    return f"qwen3_5{'_moe' if is_moe else ''}_vision"
