"""Between a Hugging Face ``config.json`` and the component configurations of an artifact. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ninferd.weights.json_table import JsonTable, shown
from ninferd.weights.model_types import MOE_TYPES, type_problem
from ninferd.weights.parameters.component_configs import (
    ATTENTION_SIZES,
    GATED_DELTA_SIZES,
    MLP_SIZES,
    MOE_SIZES,
    VISION_SIZES,
)
from ninferd.weights.parameters.config_fields import MAX_LAYERS, MAX_SIZE, float32_value
from ninferd.weights.parameters.draft_config import ARCHITECTURES
from ninferd.weights.parameters.geometry import DraftKind
from ninferd.weights.parameters.huggingface_draft import draft_component

Components = dict[str, dict[str, Any]]

_TEXT_ARCHITECTURES = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
_UNUSUAL: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("attention_bias", (False,)),
    ("attn_output_gate", (True,)),
    ("output_gate_type", ("swish", "silu")),
    ("mamba_ssm_dtype", ("float32",)),
    ("mtp_use_dedicated_embeddings", (False,)),
)
_UNUSUAL_VISION: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("in_channels", (3,)),
    ("hidden_act", ("gelu_pytorch_tanh",)),
    ("deepstack_visual_indexes", ([],)),
)


def component_configs(config: Mapping[str, Any], where: str) -> Components:
    """Configurations of the components that a ``config.json`` announces: text, vision, mtp; or one drafter alone.

    Whether the weights are really there is another question. ``where`` names the file. Raises InputError naming file
    and key for what is missing, wrong or would need other arithmetic; the sizes are checked by ``model_geometry``.
    """
    kind = draft_kind(config, where)
    if kind is not None:
        return {kind: draft_component(JsonTable(config, where), kind)}
    components = {"text": text_component(config, where)}
    vision = vision_component(config, where)
    if vision is not None:
        components["vision"] = vision
    if has_mtp(config, where):
        components["mtp"] = {"architectures": [_architecture(components["text"]["model_type"], "MTP")]}
    return components


def draft_kind(config: Mapping[str, Any], where: str) -> DraftKind | None:
    """Which drafter a ``config.json`` is of; None if it is not of one."""
    top = JsonTable(config, where)
    return next((kind for kind, name in ARCHITECTURES.items() if top.equals("architectures", [name])), None)


def text_component(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The text component of a ``config.json``, nested (``text_config``) or flat."""
    top = JsonTable(config, where)
    text = _text_table(top)
    _require_architecture(top)
    is_moe = _is_moe(text)
    _refuse_unusual(text, _UNUSUAL)
    layer_types = _layer_types(text)
    component: dict[str, Any] = {
        "architectures": [_architecture(text.string("model_type"), "ForCausalLM")],
        "model_type": "qwen3_5_moe_text" if is_moe else "qwen3_5_text",
        "hidden_size": text.integer("hidden_size", MAX_SIZE),
        "vocab_size": text.integer("vocab_size", MAX_SIZE),
        "num_hidden_layers": len(layer_types),
        "max_position_embeddings": text.integer("max_position_embeddings", MAX_SIZE),
        # Hugging Face's wrapper ties by the outer key; older exports have only the inner one.
        "tie_word_embeddings": _boolean(top if "tie_word_embeddings" in top else text, "tie_word_embeddings"),
        "rms_norm_eps": float32_value(text.number("rms_norm_eps", 0.1) if "rms_norm_eps" in text else 1e-6),
        "layer_types": layer_types,
    }
    if "full_attention" in layer_types or has_mtp(config, where):
        component |= _sizes(text, ATTENTION_SIZES) | {"rope_parameters": _rope(text)}
    if "linear_attention" in layer_types:
        component |= _sizes(text, GATED_DELTA_SIZES)
    return component | _sizes(text, MOE_SIZES if is_moe else MLP_SIZES)


def vision_component(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """The vision component; None if the configuration has none."""
    top = JsonTable(config, where)
    if "vision_config" not in top or ("language_model_only" in top and top.boolean("language_model_only")):
        return None
    vision, text = top.table("vision_config"), _text_table(top)
    _refuse_unusual(vision, _UNUSUAL_VISION)
    if "out_hidden_size" in vision:
        vision.require_equal("out_hidden_size", text.integer("hidden_size", MAX_SIZE))
    model_type = "qwen3_5_moe_vision" if _is_moe(text) else "qwen3_5_vision"
    return {"model_type": model_type} | _sizes(vision, tuple(VISION_SIZES))


def has_mtp(config: Mapping[str, Any], where: str) -> bool:
    """Whether the configuration announces the multi-token prediction layer."""
    text = _text_table(JsonTable(config, where))
    return "mtp_num_hidden_layers" in text and text.integer("mtp_num_hidden_layers", 1, minimum=0) == 1


def huggingface_config(components: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A ``config.json`` of the text, vision and mtp components, which must have passed ``model_geometry``.

    Drafters are separate directories and left out. Real numbers are spelled as short as float32 allows.
    """
    text = dict(components["text"])
    is_moe = text["model_type"] == "qwen3_5_moe_text"
    text["rms_norm_eps"] = _shortest(text["rms_norm_eps"])
    if "rope_parameters" in text:
        rope: dict[str, Any] = {"rope_type": "default", "mrope_interleaved": True} | text["rope_parameters"]
        rope |= {key: _shortest(rope[key]) for key in ("rope_theta", "partial_rotary_factor")}
        text["rope_parameters"] = rope
    text |= {"hidden_act": "silu", "attention_bias": False, "attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    text |= {"mtp_num_hidden_layers": int("mtp" in components), "mtp_use_dedicated_embeddings": False}
    if "vision" not in components:
        return text
    text.pop("architectures")
    vision = dict(components["vision"]) | {
        "model_type": "qwen3_5_moe" if is_moe else "qwen3_5",
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "out_hidden_size": text["hidden_size"],
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": [_architecture(text["model_type"], "ForConditionalGeneration")],
        "model_type": "qwen3_5_moe" if is_moe else "qwen3_5",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": vision,
    }


def _text_table(top: JsonTable) -> JsonTable:
    return top.table("text_config") if "text_config" in top else top


def _require_architecture(top: JsonTable) -> None:
    if "architectures" not in top:
        return
    architectures = top.items("architectures")
    if len(architectures) != 1 or architectures[0] not in _TEXT_ARCHITECTURES:
        raise top.error("architectures", f"must be one of {', '.join(_TEXT_ARCHITECTURES)}, not {shown(architectures)}")


def _is_moe(text: JsonTable) -> bool:
    model_type = text.string("model_type")
    if problem := type_problem(model_type):
        raise text.error("model_type", problem)
    return model_type in MOE_TYPES


def _architecture(model_type: str, kind: str) -> str:
    return f"Qwen3_5{'Moe' if model_type in MOE_TYPES else ''}{kind}"


def _refuse_unusual(table: JsonTable, rules: tuple[tuple[str, tuple[object, ...]], ...]) -> None:
    """What would need other arithmetic; an absent key is fine."""
    for key, allowed in rules:
        if key in table and not any(table.equals(key, value) for value in allowed):
            raise table.error(key, f"must be {' or '.join(map(shown, allowed))} in this model family")


def _layer_types(text: JsonTable) -> list[Any]:
    count = text.integer("num_hidden_layers", MAX_LAYERS)
    if "layer_types" in text:
        types = text.items("layer_types")
        if len(types) != count:
            raise text.error("layer_types", f"has {len(types)} entries, but num_hidden_layers is {count}")
        return types
    interval = text.integer("full_attention_interval", MAX_LAYERS) if "full_attention_interval" in text else 4
    return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(count)]


def _sizes(table: JsonTable, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: table.integer(key, MAX_SIZE) for key in keys}


def _boolean(table: JsonTable, key: str) -> bool:
    return key in table and table.boolean(key)


def _rope(text: JsonTable) -> dict[str, Any]:
    """``rope_parameters``, ``rope_scaling`` and the older keys beside them; what is said twice must not differ."""
    tables = [text.table(key) for key in ("rope_parameters", "rope_scaling") if key in text]
    for table in tables:
        for key in ("rope_type", "type"):
            if key in table and table.string(key) not in ("default", "mrope"):
                raise table.error(key, f"{shown(table.string(key))} is not available in this build; use 'default'")
        if "mrope_interleaved" in table and not table.boolean("mrope_interleaved"):
            raise table.error("mrope_interleaved", "must be true in this model family")
    numbers = {"rope_theta": (1e7, 1e12), "partial_rotary_factor": (0.25, 1.0)}
    rope: dict[str, Any] = {}
    for key, (usual, maximum) in numbers.items():
        said = {table.number(key, maximum) for table in (*tables, text) if key in table}
        if len(said) > 1:
            raise text.error(key, f"is given twice, as {' and '.join(map(str, sorted(said)))}")
        rope[key] = float32_value(said.pop() if said else usual)
    sections = [table.integers("mrope_section", MAX_SIZE) for table in tables if "mrope_section" in table]
    if not sections:
        raise text.error("rope_parameters", "must have mrope_section, three counts of pairs")
    if any(section != sections[0] for section in sections):
        raise text.error("mrope_section", "differs between rope_parameters and rope_scaling")
    return rope | {"mrope_section": list(sections[0])}


def _shortest(value: float) -> float:
    """The decimal number of the fewest digits that is the same float32."""
    return float(str(np.float32(value)))
