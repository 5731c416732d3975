"""Object names of version 1 and 2 artifacts, which have no bindings: the name says what an object holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.packing import packing_groups
from ninferd.weights.parameters.registry import parameters

RESOURCE_PREFIX = "frontend/"

_CONTEXT = re.compile(r"(.*/attention/)context_(key|value)")
_EXPERT = re.compile(r"(.*/moe/)experts/\d+/(gate|up|down)")
_RENAMED = (
    (re.compile(r"mtp/layers/0/(.*)"), r"mtp/layer/\1"),
    (re.compile(r"(vision/.*norm\d?)_(weight|bias)"), r"\1/\2"),
    (re.compile(r"(.*/moe/)shared/(.*)"), r"\1shared_\2"),
    (re.compile(r"proposal/(.*)"), r"text/draft_\1"),
    (re.compile(r"(text/draft)_token_ids"), r"\1_head_token_ids"),
)
_FUSED = {
    ("router", "shared_score"): "router_shared_gate",
    ("a_projection", "b_projection"): "a_b_projection",
    ("query_bias", "key_bias", "value_bias"): "qkv_bias",
}
_DIVISOR_SITES = (
    (re.compile(r"(.*/attention/)(query|key|gate|value)"), r"\1input_projection"),
    (re.compile(r"(.*/attention/)output"), r"\1output_projection"),
    (re.compile(r"(.*/gdn/)(query|key|value|z)"), r"\1input_projection"),
    (re.compile(r"(.*/gdn/)output"), r"\1output_projection"),
    (re.compile(r"(.*/mlp/)(gate|up)"), r"\1gate_up_projection"),
    (re.compile(r"(.*/mlp/)down"), r"\1down_projection"),
)


@dataclass(frozen=True)
class LegacyObject:
    """A tensor that a file may have."""

    name: str
    parameters: tuple[str, ...]  # whose rows it holds, one after the other
    aliases: tuple[tuple[str, str], ...] = ()  # (a further parameter, that of ``parameters`` which has its values)


def legacy_objects(geometry: ModelGeometry) -> tuple[LegacyObject, ...]:
    """Every name that a tensor may have, in model order; fused parents first where there is a choice."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for group in packing_groups(geometry):
        groups.setdefault(group[0], []).append(group)
    objects = []
    for parameter in parameters(geometry):
        if not _CONTEXT.fullmatch(parameter.name):
            objects += [_object(group) for group in groups.get(parameter.name, ())]
            objects.append(_object((parameter.name,)))
    return tuple(objects)


def divisor_name(parameter: str) -> str | None:
    """Name of the object with the activation divisor of a projection; None if it never has one."""
    for pattern, site in _DIVISOR_SITES:
        if pattern.fullmatch(parameter):
            return _renamed(pattern.sub(site, parameter)) + "/input_scale_divisor"
    return None


def _object(group: tuple[str, ...]) -> LegacyObject:
    """A drafter projects the context with the weights of its own keys and values."""
    aliases = tuple(
        (name.replace("/attention/", "/attention/context_"), name)
        for name in group
        if name.startswith("dflash") and name.endswith(("/attention/key", "/attention/value"))
    )
    return LegacyObject(_group_name(group), group, aliases)


def _group_name(group: tuple[str, ...]) -> str:
    if len(group) == 1:
        return _renamed(group[0])
    expert = _EXPERT.fullmatch(group[0])
    if expert is not None:
        return _renamed(expert[1]) + ("routed_down" if expert[2] == "down" else "routed_gate_up")
    prefix = group[0].rpartition("/")[0] + "/"
    parts = tuple(name.removeprefix(prefix) for name in group)
    if prefix.startswith("vision/") and parts == ("query", "key", "value"):
        return f"{prefix}qkv"
    return _renamed(prefix + _FUSED.get(parts, "_".join(parts)))


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name) if pattern.fullmatch(name) else name
    return name
