"""The configuration of a DFlash or DFlash2 drafter in the spelling of an artifact's directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninferd.weights.json_table import JsonTable, shown
from ninferd.weights.parameters.config_fields import MAX_KERNEL, MAX_SIZE, float32_value, grouped_heads, layer_types
from ninferd.weights.parameters.geometry import (
    ConvolutionGeometry,
    DraftGeometry,
    DraftKind,
    DraftLayerType,
)

ARCHITECTURES: dict[DraftKind, str] = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}

_MEMBERS = (
    "architectures",
    "model_type",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "layer_types",
    "dflash_config",
)
_DFLASH_MEMBERS = ("target_layer_ids", "mask_token_id")
_DFLASH2_MEMBERS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True)
class DraftTarget:
    """What a drafter depends on of the model that it drafts for."""

    hidden_size: int
    vocab_size: int
    layers: int


def draft_geometry(table: JsonTable, kind: DraftKind, target: DraftTarget) -> DraftGeometry:
    """Read a drafter for ``target``. Raises InputError naming the key."""
    types: tuple[DraftLayerType, ...] = layer_types(table, ("sliding_attention", "full_attention"))
    has_sliding = "sliding_attention" in types
    table.require_only((*_MEMBERS, *(("sliding_window",) if has_sliding else ())))
    table.require_equal("architectures", [ARCHITECTURES[kind]])
    table.require_equal("model_type", "qwen3")
    heads, kv_heads = grouped_heads(table, "num_attention_heads", "num_key_value_heads")
    head_dim = table.integer("head_dim", MAX_SIZE)
    if head_dim % 2:
        raise table.error("head_dim", f"must be even, not {head_dim}")
    rope = table.table("rope_parameters")
    rope.require_only(["rope_theta"])
    dflash = table.table("dflash_config")
    dflash.require_only((*_DFLASH_MEMBERS, *(_DFLASH2_MEMBERS if kind == "dflash2" else ())))
    return DraftGeometry(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layer_types=types,
        intermediate_size=table.integer("intermediate_size", MAX_SIZE),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=table.integer("max_position_embeddings", MAX_SIZE),
        rms_norm_eps=table.number("rms_norm_eps", 0.1),
        rope_theta=rope.number("rope_theta", 1e12),
        sliding_window=table.integer("sliding_window", MAX_SIZE) if has_sliding else None,
        target_layer_ids=_target_layer_ids(dflash, target.layers),
        mask_token_id=dflash.integer("mask_token_id", target.vocab_size - 1, minimum=0),
        convolution=_convolution(dflash, target) if kind == "dflash2" else None,
    )


def draft_config(draft: DraftGeometry) -> dict[str, Any]:
    """The inverse of ``draft_geometry``."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[draft.kind]],
        "model_type": "qwen3",
        "intermediate_size": draft.intermediate_size,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "num_hidden_layers": len(draft.layer_types),
        "max_position_embeddings": draft.max_position_embeddings,
        "rms_norm_eps": float32_value(draft.rms_norm_eps),
        "rope_parameters": {"rope_theta": float32_value(draft.rope_theta)},
        "layer_types": list(draft.layer_types),
    }
    if draft.sliding_window is not None:
        config["sliding_window"] = draft.sliding_window
    config["dflash_config"] = {
        "target_layer_ids": list(draft.target_layer_ids),
        "mask_token_id": draft.mask_token_id,
    }
    if draft.convolution is not None:
        config["dflash_config"] |= {
            "conv_kernel_size": draft.convolution.kernel_size,
            "conv_group_size": draft.convolution.group_size,
            "selector_rank": draft.convolution.selector_rank,
            "selector_top_k": draft.convolution.selector_top_k,
        }
    return config


def _target_layer_ids(dflash: JsonTable, target_layers: int) -> tuple[int, ...]:
    ids = dflash.integers("target_layer_ids", target_layers - 1)
    if not ids or len(set(ids)) != len(ids):
        raise dflash.error("target_layer_ids", f"must be different layers, at least one, not {shown(list(ids))}")
    return ids


def _convolution(dflash: JsonTable, target: DraftTarget) -> ConvolutionGeometry:
    group_size = dflash.integer("conv_group_size", MAX_SIZE)
    if target.hidden_size % group_size:
        raise dflash.error(
            "conv_group_size", f"({group_size}) must divide the text model's hidden_size ({target.hidden_size})"
        )
    return ConvolutionGeometry(
        kernel_size=dflash.integer("conv_kernel_size", MAX_KERNEL),
        group_size=group_size,
        selector_rank=dflash.integer("selector_rank", MAX_SIZE),
        selector_top_k=dflash.integer("selector_top_k", target.vocab_size),
    )
