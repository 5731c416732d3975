"""Names of known combinations of formats, held to the published tables on the published geometries."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from numpy.typing import NDArray

from ninferd.config.groups.model import WeightsProfile
from ninferd.errors import InputError
from ninferd.weights.convert.recipes import find_recipe
from ninferd.weights.loading.plan import TextPlan, text_plan
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.profiles import PROFILES, WeightsDescription, describe, require_profile, role_of
from ninferd.weights.stored import RowRun, StoredMatrix

DENSE = text_plan(GEOMETRIES["qwen3.8-27b"].text)
MOE = text_plan(GEOMETRIES["qwen3.6-35b-a3b"].text)
Q4, Q5, Q6, Q8, NVFP4, FP8, BF16 = (
    "q4_g64_fp16",
    "q5_g64_fp16",
    "q6_g64_fp16",
    "q8_g32_fp16",
    "nvfp4",
    "fp8_e4m3fn_row_bf16",
    "bf16",
)
FormatOf = Callable[[str, int], str]
"""Of a parameter without its layer (``attention/query``, ``token_embedding``) and the layer."""


@dataclass(frozen=True)
class Stored:
    """A source in which every parameter has one object of its own, except that a and b may share theirs."""

    format_of: FormatOf
    fuses_ab: bool = False
    path: Path = Path("m.ninfer")
    config: Any = None

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        found = re.fullmatch(r"text/(?:layers/(\d+)/)?(.*)", parameter)
        assert found is not None
        name = re.sub("/[ab]_projection", "/a_b_projection", parameter) if self.fuses_ab else parameter
        format = self.format_of(found[2], int(found[1] or 0))
        return (RowRun(StoredMatrix(name, self.path, format, rows, columns, {}), 0, rows),)

    def resource(self, name: str) -> bytes | None:
        return None

    def has(self, parameter: str) -> bool:
        return True

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        raise NotImplementedError

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        raise NotImplementedError

    def require_no_others(self, known: frozenset[str]) -> None:
        raise NotImplementedError


def by(*rules: tuple[str, str], otherwise: str) -> FormatOf:
    """The first rule whose pattern matches the whole name decides."""
    return lambda name, _: next((format for pattern, format in rules if re.fullmatch(pattern, name)), otherwise)


AB = ("gdn/[ab]_projection", BF16)
ENDS = "token_embedding|output_head"
GROUPWISE = ((".*/(query|key)", Q4), ("mlp/(gate|up)", Q4))


def official_qwen38(name: str, layer: int) -> str:
    if name.startswith("mlp/"):
        return NVFP4 if layer <= 55 else FP8
    return BF16 if re.fullmatch(AB[0], name) else FP8


def official_qwen36(name: str, layer: int) -> str:
    """With the sites that have no divisor in the published checkpoint."""
    if (name, layer) in (("attention/output", 3), ("attention/output", 7), ("gdn/output", 4)):
        return BF16
    if name.startswith("attention/") and name != "attention/output" and layer < 24:
        return BF16
    return by(AB, (ENDS, Q8), otherwise=NVFP4)(name, layer)


def official_moe(name: str, layer: int) -> str:
    if re.fullmatch(r"moe/experts/\d+/down", name):
        return Q6 if layer in (34, 38, 39) else Q5
    rules = (AB, ("moe/(router|shared_score)", BF16), ("output_head", Q6), (r"moe/experts/\d+/.*", Q4))
    return by(*rules, otherwise=Q8)(name, layer)


PUBLISHED: dict[str, tuple[TextPlan, FormatOf]] = {
    "bf16": (DENSE, by(otherwise=BF16)),
    "qwen36-groupwise-int": (DENSE, by(AB, (ENDS, Q6), *GROUPWISE, otherwise=Q5)),
    "qwen36-moe-groupwise-int": (MOE, official_moe),
    "qwen36-moe-nvfp4": (
        MOE,
        by(
            AB,
            ("moe/(router|shared_score)", BF16),
            ("output_head", Q6),
            (r"moe/(experts/\d+|shared)/.*", NVFP4),
            otherwise=Q8,
        ),
    ),
    "qwen36-nvfp4": (DENSE, official_qwen36),
    "qwen38-groupwise-int": (DENSE, by(AB, (ENDS, Q8), *GROUPWISE, otherwise=Q5)),
    "qwen38-nvfp4": (DENSE, official_qwen38),
    "qwen38-nvfp4-mlp": (DENSE, by(AB, ("mlp/.*", NVFP4), otherwise=FP8)),
}


@functools.cache
def description(name: str) -> WeightsDescription:
    plan, format_of = PUBLISHED[name]
    return describe(Stored(format_of), plan)


def test_the_configuration_accepts_exactly_these_names() -> None:
    assert set(get_args(WeightsProfile)) - {"auto"} == set(PROFILES) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_combinations_have_their_name(name: str) -> None:
    found = description(name)
    assert found.name == name
    require_profile(found, name, "m.ninfer")


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_combination_passes_for_another(name: str) -> None:
    assert [other for other in PROFILES if not description(name).differences(other)] == [name]


def test_all_nvfp4_with_q8_ends_is_the_same_family() -> None:
    """headpiece747, QUASAR: without the sites in BF16."""
    assert describe(Stored(by(AB, (ENDS, Q8), otherwise=NVFP4)), DENSE).name == "qwen36-nvfp4"


def test_one_matrix_in_another_format_is_custom_and_named() -> None:
    plan, format_of = PUBLISHED["qwen38-nvfp4-mlp"]

    def changed(name: str, layer: int) -> str:
        return Q8 if name == "mlp/down" and layer in (5, 9) else format_of(name, layer)

    found = describe(Stored(changed), plan)
    assert found.name == "custom"
    with pytest.raises(InputError) as caught:
        require_profile(found, "qwen38-nvfp4-mlp", "m.ninfer")
    assert str(caught.value) == (
        "m.ninfer: model.weights_profile is qwen38-nvfp4-mlp, but the weights are custom: "
        "mlp/down: expected nvfp4, found q8_g32_fp16 in layers 5, 9"
    )


def test_differences_are_bounded_and_say_where() -> None:
    with pytest.raises(InputError) as caught:
        require_profile(description("qwen38-nvfp4"), "qwen36-groupwise-int", "m.ninfer")
    text = str(caught.value)
    assert "but the weights are qwen38-nvfp4: embedding: expected q6_g64_fp16, found fp8_e4m3fn_row_bf16; " in text
    assert "gdn/query: expected q4_g64_fp16, found fp8_e4m3fn_row_bf16 in layers 0, 1, 2, 4, 5, 6 and 42 more" in text
    assert text.endswith("; and 9 more"), "of 15 roles"
    (difference,) = description("qwen38-nvfp4-mlp").differences("qwen38-nvfp4")[:1]
    assert difference == (
        "mlp/gate: expected fp8_e4m3fn_row_bf16 in the last eighth of the layers, "
        "found nvfp4 in layers 56, 57, 58, 59, 60, 61 and 2 more"
    )


def test_summary() -> None:
    assert description("qwen36-groupwise-int").summary() == (
        "embedding q6_g64_fp16; head q6_g64_fp16; gdn q4_g64_fp16+q5_g64_fp16 in 48; "
        "mlp q4_g64_fp16+q5_g64_fp16 in 64; attention q4_g64_fp16+q5_g64_fp16 in 16; a/b separate"
    )
    assert describe(Stored(official_qwen38, fuses_ab=True), DENSE).summary() == (
        "embedding fp8_e4m3fn_row_bf16; head fp8_e4m3fn_row_bf16; gdn fp8_e4m3fn_row_bf16 in 48; "
        "mlp nvfp4 in 56, fp8_e4m3fn_row_bf16 in 8; attention fp8_e4m3fn_row_bf16 in 16; a/b fused"
    )
    assert "moe/experts q4_g64_fp16+q5_g64_fp16 in 37, q4_g64_fp16+q6_g64_fp16 in 3; moe/shared q8_g32_fp16 in 40" in (
        description("qwen36-moe-groupwise-int").summary()
    )


def test_a_tied_model_has_no_head() -> None:
    plan = text_plan(replace(GEOMETRIES["qwen3.8-27b"].text, tie_word_embeddings=True))
    found = describe(Stored(by(otherwise=BF16)), plan)
    assert "head" not in found.formats
    assert found.name == "bf16"


@pytest.mark.parametrize(
    ("parameter", "role"),
    [
        ("text/token_embedding", ("embedding", 0)),
        ("text/output_head", ("head", 0)),
        ("text/layers/63/attention/query", ("attention/query", 63)),
        ("text/layers/7/moe/experts/255/down", ("moe/experts/down", 7)),
        ("text/layers/7/moe/shared/up", ("moe/shared/up", 7)),
        ("text/layers/7/moe/router", ("moe/router", 7)),
    ],
)
def test_roles(parameter: str, role: tuple[str, int]) -> None:
    assert role_of(parameter) == role


@pytest.mark.parametrize(
    ("recipe", "profile"),
    [
        ("bf16", "bf16"),
        ("nvfp4", "qwen36-nvfp4"),
        ("groupwise-int", "qwen38-groupwise-int"),
        ("qwen3.8-nvfp4", "qwen38-nvfp4"),
        ("qwen3_6_27b", "qwen36-groupwise-int"),
        ("qwen3_8_27b", "qwen38-groupwise-int"),
        ("qwen3_6_27b_nvfp4", "qwen36-nvfp4"),
        ("qwen3_8_27b_nvfp4", "qwen38-nvfp4"),
        ("fp8-importing", "qwen38-nvfp4-mlp"),
        ("qwen3_8_27b_nvfp4_swift", "qwen36-nvfp4"),
        ("qwen3_8_27b_nvfp4_qat", "qwen36-nvfp4"),
        ("qwen3_8_27b_nvfp4_full", "qwen36-nvfp4"),
        ("qwen3_6_35b_a3b", "qwen36-moe-groupwise-int"),
        ("qwen3_6_35b_a3b_nvfp4", "qwen36-moe-nvfp4"),
    ],
)
def test_what_the_converter_writes_has_a_name(recipe: str, profile: str) -> None:
    is_moe = "35b" in recipe
    rules = find_recipe(recipe, is_moe)

    def format_of(name: str, layer: int) -> str:
        is_end = name in ("token_embedding", "output_head")
        return rules.format_of(f"text/{name}" if is_end else f"text/layers/{layer}/{name}", 40 if is_moe else 64)

    assert describe(Stored(format_of), MOE if is_moe else DENSE).name == profile
