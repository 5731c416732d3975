"""Recipes: which parameter is stored in which format. Ordered rules; the first whose pattern matches decides.

The published assignments are those of the native converter (Neroued/ninfer) and of the publishers of its artifacts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ninferd.errors import InputError
from ninferd.weights.formats.registry import BF16, FP8_ROW, NVFP4, Q4, Q5, Q6, Q8

LayerChoice = Callable[[int, int], bool]
"""Of (layer, number of layers): whether a rule applies to this layer of the text model."""

_TEXT_LAYER = re.compile(r"text/layers/(\d+)/")


@dataclass(frozen=True)
class Rule:
    """``format`` for every parameter whose whole name matches; ``layers`` narrows it to some text layers."""

    pattern: str
    format: str
    layers: LayerChoice | None = None

    def matches(self, parameter: str, layer_count: int) -> bool:
        if not _compiled(self.pattern).fullmatch(parameter):
            return False
        if self.layers is None:
            return True
        layer = _TEXT_LAYER.match(parameter)
        return layer is not None and self.layers(int(layer[1]), layer_count)


@dataclass(frozen=True)
class Recipe:
    """Formats of all parameters that are not stored directly, and what may share an object."""

    name: str
    rules: tuple[Rule, ...]
    separate: str = ""  # pattern of parameters that are never packed with others
    shares_context: bool = True  # the context projections of a draft model are those of its key and value
    is_calibrated: bool = False  # made from a source with activation divisors for nvfp4: what a dry run assumes

    def format_of(self, parameter: str, layer_count: int) -> str:
        """Format of a parameter that the registry does not fix. Every recipe ends with a rule for all."""
        for rule in self.rules:
            if rule.matches(parameter, layer_count):
                return rule.format
        raise InputError(f"recipe {self.name} has no rule for parameter {parameter}")

    def is_separate(self, parameter: str) -> bool:
        """Whether the parameter has an object of its own."""
        return bool(self.separate) and _compiled(self.separate).fullmatch(parameter) is not None


def activation_policy(format: str, is_calibrated: bool) -> str:
    """The lowest activation precision that a product with such a weight may use, in the words of the container."""
    if format == NVFP4 and is_calibrated:
        return "AllowA4"
    return "AllowA8" if format == FP8_ROW else "A16Only"


def find_recipe(name: str, is_moe: bool) -> Recipe:
    """The recipe of a name, for dense or mixture-of-experts models. InputError naming the known ones."""
    for table in (_MOE if is_moe else {}, _ANY):
        if name in table:
            return table[name]
    if name in _MOE:
        raise InputError(f"recipe {name} is for mixture-of-experts models")
    raise InputError(f"there is no recipe {name!r}; known: {', '.join(recipe_names())}")


def recipe_names() -> tuple[str, ...]:
    """All names, the general ones first."""
    return tuple(dict.fromkeys((*_ANY, *_MOE)))


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _only(*layers: int) -> LayerChoice:
    return lambda layer, _: layer in layers


def _below(limit: int) -> LayerChoice:
    return lambda layer, _: layer < limit


def _first_seven_eighths(layer: int, layer_count: int) -> bool:
    return layer < layer_count * 7 // 8


_SMALL = Rule(
    r".*/(a_projection|b_projection|router|shared_score|kernel_projection"
    r"|candidate_selector/(hidden_projection|predecessor_codebook|successor_codebook))",
    BF16,
)
_DRAFT_NVFP4 = Rule(r"dflash2?/.*", NVFP4)
_OPTIONAL = (
    Rule(r"vision/patch_embedding", Q6),
    Rule(r"vision/merger/fc[12]", Q8),
    Rule(r"vision/layers/\d+/(attention/(query|key|value)|mlp/fc1)", Q4),
    Rule(r"vision/.*", Q5),
    Rule(r"(mtp|dflash2?)/.*", Q8),
    Rule(r"proposal/head", Q4),
)
_ENDS = r"text/(token_embedding|output_head)"
_GROUPWISE_DENSE = (
    Rule(r"text/layers/\d+/((attention|gdn)/(query|key)|mlp/(gate|up))", Q4),
    Rule(r".*", Q5),
)
_GROUPWISE_MOE = (
    Rule(r"text/token_embedding", Q8),
    Rule(r"text/output_head", Q6),
    Rule(r"text/layers/\d+/moe/experts/\d+/(gate|up)", Q4),
    Rule(r"text/layers/\d+/moe/experts/\d+/down", Q6, _only(34, 38, 39)),
    Rule(r"text/layers/\d+/moe/experts/\d+/down", Q5),
    Rule(r".*", Q8),
)
_ALL_NVFP4 = (Rule(_ENDS, Q8), Rule(r".*", NVFP4))
_KEPT_BF16 = (  # sites without a divisor in the quantised checkpoint of Qwen3.6-27B
    Rule(r"text/layers/\d+/attention/(query|key|gate|value)", BF16, _below(24)),
    Rule(r"text/layers/\d+/attention/output", BF16, _only(3, 7)),
    Rule(r"text/layers/\d+/gdn/output", BF16, _only(4)),
)
_MIXED = (
    Rule(r"text/layers/\d+/(mlp/.*|moe/(experts/\d+|shared)/.*)", NVFP4, _first_seven_eighths),
    Rule(r".*", FP8_ROW),
)
_AB = r".*/(a_projection|b_projection)"


def _groupwise_dense(name: str, ends: str) -> Recipe:
    return Recipe(name, (_SMALL, *_OPTIONAL, Rule(_ENDS, ends), *_GROUPWISE_DENSE), separate=_AB)


def _groupwise_moe(name: str) -> Recipe:
    return Recipe(name, (_SMALL, *_OPTIONAL, *_GROUPWISE_MOE))


_RECIPES = (
    Recipe("bf16", (Rule(r".*", BF16),)),
    Recipe("nvfp4", (_SMALL, *_OPTIONAL, *_ALL_NVFP4)),
    _groupwise_dense("groupwise-int", Q8),
    Recipe("qwen3.8-nvfp4", (_SMALL, *_OPTIONAL, *_MIXED)),
    _groupwise_dense("qwen3_6_27b", Q6),
    _groupwise_dense("qwen3_8_27b", Q8),
    Recipe("qwen3_6_27b_nvfp4", (_SMALL, *_OPTIONAL, *_KEPT_BF16, *_ALL_NVFP4), separate=_AB, is_calibrated=True),
    Recipe("qwen3_8_27b_nvfp4", (_SMALL, *_OPTIONAL, *_MIXED), is_calibrated=True),
    Recipe(
        "fp8-importing",  # CaptainArni, wallawalla47, kvnxiao
        (_SMALL, *_OPTIONAL, Rule(r"text/layers/\d+/(mlp|moe)/.*", NVFP4), Rule(r".*", FP8_ROW)),
        is_calibrated=True,
    ),
    Recipe("qwen3_8_27b_nvfp4_swift", (_SMALL, *_OPTIONAL, *_ALL_NVFP4), is_calibrated=True),  # headpiece747
    Recipe(
        "qwen3_8_27b_nvfp4_qat",
        (_SMALL, _DRAFT_NVFP4, *_OPTIONAL, *_ALL_NVFP4),
        shares_context=False,
        is_calibrated=True,
    ),
    Recipe(
        "qwen3_8_27b_nvfp4_full",
        (_SMALL, _DRAFT_NVFP4, *_OPTIONAL, *_KEPT_BF16, *_ALL_NVFP4),
        shares_context=False,
        is_calibrated=True,
    ),
)
_ANY = {recipe.name: recipe for recipe in _RECIPES}
_MOE = {
    recipe.name: recipe
    for recipe in (
        _groupwise_moe("groupwise-int"),
        _groupwise_moe("qwen3_6_35b_a3b"),
        Recipe(
            "qwen3_6_35b_a3b_nvfp4",
            (
                _SMALL,
                *_OPTIONAL,
                Rule(r"text/output_head", Q6),
                Rule(r"text/layers/\d+/moe/(experts/\d+|shared)/.*", NVFP4),
                Rule(r".*", Q8),
            ),
            is_calibrated=True,
        ),
    )
}
