"""From the ``config.json`` of a DFlash or DFlash2 checkpoint to the configuration of an artifact's drafter."""

from __future__ import annotations

from typing import Any

from ninferd.weights.json_table import JsonTable
from ninferd.weights.parameters.config_fields import MAX_KERNEL, MAX_LAYERS, MAX_SIZE, float32_value
from ninferd.weights.parameters.draft_config import ARCHITECTURES, DraftTarget
from ninferd.weights.parameters.geometry import DraftKind

_SIZES = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers")


def draft_component(top: JsonTable, kind: DraftKind) -> dict[str, Any]:
    """The configuration of a drafter. Raises InputError naming the key."""
    if "hidden_act" in top:
        top.require_equal("hidden_act", "silu")
    if "attention_bias" in top:
        top.require_equal("attention_bias", False)
    layers = top.integer("num_hidden_layers", MAX_LAYERS)
    layer_types = top.items("layer_types") if "layer_types" in top else ["full_attention"] * layers
    component: dict[str, Any] = {"architectures": [ARCHITECTURES[kind]], "model_type": "qwen3"}
    component |= {key: top.integer(key, MAX_SIZE) for key in _SIZES}
    component |= {
        "max_position_embeddings": top.integer("max_position_embeddings", MAX_SIZE),
        "rms_norm_eps": float32_value(top.number("rms_norm_eps", 0.1) if "rms_norm_eps" in top else 1e-6),
        "rope_parameters": {"rope_theta": float32_value(_rope_theta(top))},
        "layer_types": layer_types,
    }
    if "sliding_attention" in layer_types:
        component["sliding_window"] = top.integer("sliding_window", MAX_SIZE)
    return component | {"dflash_config": _dflash(top, kind)}


def draft_target(top: JsonTable) -> DraftTarget:
    """What the checkpoint says of the model that it drafts for; its layers are as many as it knows of."""
    layers = top.integer("num_target_layers", MAX_LAYERS) if "num_target_layers" in top else MAX_LAYERS
    return DraftTarget(top.integer("hidden_size", MAX_SIZE), top.integer("vocab_size", MAX_SIZE), layers)


def _rope_theta(top: JsonTable) -> float:
    for key in ("rope_parameters", "rope_scaling"):
        if key in top:
            rope = top.table(key)
            if "rope_type" in rope:
                rope.require_equal("rope_type", "default")
            if "rope_theta" in rope:
                return rope.number("rope_theta", 1e12)
    return top.number("rope_theta", 1e12)


def _dflash(top: JsonTable, kind: DraftKind) -> dict[str, Any]:
    """Keys of ``dflash_config``, which wins, or of the top level."""
    inner = top.table("dflash_config") if "dflash_config" in top else top

    def place(key: str) -> JsonTable:
        return inner if key in inner else top

    dflash: dict[str, Any] = {
        "target_layer_ids": list(place("target_layer_ids").integers("target_layer_ids", MAX_LAYERS)),
        "mask_token_id": place("mask_token_id").integer("mask_token_id", MAX_SIZE, minimum=0),
    }
    if kind == "dflash2":
        limits = {"conv_kernel_size": MAX_KERNEL, "conv_group_size": MAX_SIZE, "selector_rank": MAX_SIZE}
        limits["selector_top_k"] = MAX_SIZE
        dflash |= {key: place(key).integer(key, limit) for key, limit in limits.items()}
    return dflash
