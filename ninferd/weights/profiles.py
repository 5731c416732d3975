"""In which formats the text model's weights are stored: a description, and the names of known combinations.

A name is for people: it is printed, and can be asserted. Formats are always read from the stored tensors themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from ninferd.errors import InputError
from ninferd.weights.formats.registry import BF16, FP8_ROW, NVFP4, Q4, Q5, Q6, Q8
from ninferd.weights.loading.plan import TextPlan
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import RowRun

CUSTOM = "custom"
MAX_SHOWN = 6

EMBEDDING, HEAD = "embedding", "head"
_AB = ("gdn/a_projection", "gdn/b_projection")
_SMALL = (*_AB, "moe/router", "moe/shared_score")


Layers = Literal["all", "first seven eighths", "last eighth"]


@dataclass(frozen=True)
class Rule:
    """Formats that a role may have in some layers."""

    formats: tuple[str, ...]
    layers: Layers = "all"

    def covers(self, layer: int, layer_count: int) -> bool:
        is_early = layer < layer_count * 7 // 8
        return self.layers == "all" or is_early == (self.layers == "first seven eighths")


Profile = Mapping[str, tuple[Rule, ...]]
"""A combination of formats that is published under one name: by role, or by the beginning of roles.

The longest beginning counts. How parameters are packed into objects is no part of it.
"""


@dataclass(frozen=True)
class WeightsDescription:
    """Formats of all matrices of the text model, by role (``attention/query``, ``moe/experts/gate``, ``head``)."""

    formats: Mapping[str, Mapping[int, frozenset[str]]]  # role -> layer -> formats; endpoints are in layer 0
    is_ab_fused: bool | None  # whether gdn/a and gdn/b lie in one stored matrix; None without such layers

    @property
    def name(self) -> str:
        """The first profile that fits, or "custom"."""
        return next((name for name in PROFILES if not self.differences(name)), CUSTOM)

    def differences(self, profile: str) -> list[str]:
        """What is not as in ``profile``, one sentence per role; empty if it fits."""
        return list(_differences(self, PROFILES[profile]))

    def summary(self) -> str:
        """One line: endpoints, then how many layers have which formats."""
        ends = [f"{role} {_joined(self.formats[role][0])}" for role in (EMBEDDING, HEAD) if role in self.formats]
        parts = [*ends, *(f"{group} {text}" for group, text in self._histograms())]
        if self.is_ab_fused is not None:
            parts.append(f"a/b {'fused' if self.is_ab_fused else 'separate'}")
        return "; ".join(parts)

    def _histograms(self) -> Iterator[tuple[str, str]]:
        """(group of roles, how many layers have which formats in it)."""
        groups: dict[str, dict[int, set[str]]] = {}
        for role, layers in self.formats.items():
            if "/" in role and role not in _SMALL:
                group = groups.setdefault(role.rsplit("/", 1)[0], defaultdict(set))
                for layer, formats in layers.items():
                    group[layer] |= formats
        for name, by_layer in groups.items():
            histogram = Counter(_joined(formats) for formats in by_layer.values())
            yield name, ", ".join(f"{formats} in {layers}" for formats, layers in histogram.most_common())


def describe(source: ModelSource, plan: TextPlan) -> WeightsDescription:
    """What the matrices of ``plan`` are stored as. Raises InputError for one that is missing or misshapen."""
    formats: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    ab: dict[str, tuple[RowRun, ...]] = {}
    for request in plan.matrices:
        for parameter in request.parameters:
            rows, columns = parameter.shape
            runs = source.matrix(parameter.name, rows, columns)
            role, layer = role_of(parameter.name)
            formats[role][layer].update(run.matrix.format for run in runs)
            if role in _AB:
                ab.setdefault(role, runs)
    frozen = {role: {layer: frozenset(found) for layer, found in layers.items()} for role, layers in formats.items()}
    return WeightsDescription(frozen, _share_a_matrix(*ab.values()) if ab else None)


def require_profile(description: WeightsDescription, profile: str, where: str) -> None:
    """InputError listing the differences if the weights are not stored as ``profile`` says."""
    differences = description.differences(profile)
    if differences:
        more = f"; and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
        raise InputError(
            f"{where}: model.weights_profile is {profile}, but the weights are {description.name}: "
            + "; ".join(differences[:MAX_SHOWN])
            + more
        )


def role_of(parameter: str) -> tuple[str, int]:
    """What a text parameter is, whatever its layer and expert, and its layer: ``("attention/query", 3)``."""
    _, *parts = parameter.split("/")
    if parts[0] != "layers":
        return {"token_embedding": EMBEDDING, "output_head": HEAD}[parts[0]], 0
    layer, rest = int(parts[1]), parts[2:]
    return "/".join([*rest[:2], *rest[3:]] if rest[:2] == ["moe", "experts"] else rest), layer


def _share_a_matrix(*parameters: tuple[RowRun, ...]) -> bool:
    matrices = {(run.matrix.path, run.matrix.name) for runs in parameters for run in runs}
    return len(matrices) == 1


def _joined(formats: frozenset[str] | set[str]) -> str:
    return "+".join(sorted(formats))


def _differences(description: WeightsDescription, profile: Profile) -> Iterator[str]:
    layer_count = 1 + max(layer for layers in description.formats.values() for layer in layers)
    for role, layers in description.formats.items():
        for rule in _rules_for(profile, role):
            wrong = {
                layer: formats
                for layer, formats in layers.items()
                if rule.covers(layer, layer_count) and not formats <= set(rule.formats)
            }
            if wrong:
                where = "" if rule.layers == "all" else f" in the {rule.layers} of the layers"
                found = frozenset[str]().union(*wrong.values())
                place = f" in {_layers_text(wrong)}" if "/" in role else ""
                yield f"{role}: expected {' or '.join(rule.formats)}{where}, found {_joined(found)}{place}"


def _rules_for(profile: Profile, role: str) -> tuple[Rule, ...]:
    beginnings = [part for part in profile if part == "" or role == part or role.startswith(f"{part}/")]
    return profile[max(beginnings, key=len)]


def _layers_text(layers: Mapping[int, object]) -> str:
    shown = ", ".join(str(layer) for layer in islice(sorted(layers), MAX_SHOWN))
    more = f" and {len(layers) - MAX_SHOWN} more" if len(layers) > MAX_SHOWN else ""
    return f"layer{'s' if len(layers) > 1 else ''} {shown}{more}"


def _all(*formats: str) -> tuple[Rule, ...]:
    return (Rule(formats),)


_SMALL_BF16: Profile = {role: _all(BF16) for role in _SMALL}


def _groupwise(endpoints: str) -> Profile:
    return {
        "": _all(Q5),
        EMBEDDING: _all(endpoints),
        HEAD: _all(endpoints),
        "attention/query": _all(Q4),
        "attention/key": _all(Q4),
        "gdn/query": _all(Q4),
        "gdn/key": _all(Q4),
        "mlp/gate": _all(Q4),
        "mlp/up": _all(Q4),
        **_SMALL_BF16,
    }


def _fp8_around(feed_forward: tuple[Rule, ...]) -> Profile:
    return {"": _all(FP8_ROW), "mlp": feed_forward, "moe": feed_forward, **_SMALL_BF16}


PROFILES: Mapping[str, Profile] = {
    "bf16": {"": _all(BF16)},
    "qwen36-groupwise-int": _groupwise(Q6),
    "qwen36-moe-groupwise-int": {
        "": _all(Q8),
        HEAD: _all(Q6),
        "moe/experts/gate": _all(Q4),
        "moe/experts/up": _all(Q4),
        "moe/experts/down": _all(Q5, Q6),
        **_SMALL_BF16,
    },
    "qwen36-moe-nvfp4": {"": _all(Q8), HEAD: _all(Q6), "moe": _all(NVFP4), **_SMALL_BF16},
    "qwen36-nvfp4": {
        "": _all(NVFP4),
        EMBEDDING: _all(Q8),
        HEAD: _all(Q8),
        "attention": _all(NVFP4, BF16),
        "gdn/output": _all(NVFP4, BF16),
        **_SMALL_BF16,
    },
    "qwen38-groupwise-int": _groupwise(Q8),
    "qwen38-nvfp4": _fp8_around((Rule((NVFP4,), "first seven eighths"), Rule((FP8_ROW,), "last eighth"))),
    "qwen38-nvfp4-mlp": _fp8_around(_all(NVFP4)),
}
"""The profiles of the v2 line, the native v3 recipes, and files that take the FP8 part from ModelOpt checkpoints."""
