"""Profile chains, and the profiles that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.config.availability import unavailable_keys
from ninferd.config.layers import load
from ninferd.config.profiles import shipped_profiles_dir
from tests.config.support import MODEL, refusal, sources

_HOST_CACHE = ["cache.device_state_slots", "cache.host_state_slots", "cache.host_kv_mib"]
_MTP = ["spec.backend", "spec.draft_tokens", "spec.lm_head_draft"]
_ROPE = ["engine.rope_scaling_factor"]

_SHIPPED = {
    "tiny": [],
    "swift-262k-dflash2": ["spec.backend", "spec.draft_tokens", "tools.tolerant"],
    # host_state_slots and host_kv_mib are the defaults
    "yarn-420k-mtp": [*_ROPE, *_MTP, "cache.device_state_slots", "tools.tolerant", "media.vision_cpu"],
    "yarn-555k-c3": [*_ROPE, *_MTP, *_HOST_CACHE, "tools.tolerant", "media.vision_cpu"],
    "long-600k-c1": [*_ROPE, *_MTP, *_HOST_CACHE, "tools.tolerant"],
    "nvfp4-8lane": [*_HOST_CACHE, "tools.tolerant"],
}


def test_all_shipped_profiles_are_known() -> None:
    assert {path.stem for path in shipped_profiles_dir().iterdir()} == _SHIPPED.keys()


@pytest.mark.parametrize(("name", "later"), _SHIPPED.items(), ids=_SHIPPED)
def test_a_shipped_profile_is_valid_and_waits_for_known_features_only(
    tmp_path: Path, name: str, later: list[str]
) -> None:
    resolved = load(sources(tmp_path, "" if name == "tiny" else MODEL, profile=name))
    assert resolved.profile == name
    assert unavailable_keys(resolved) == later
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tiny", ("embedded:ninfer-tiny", 16384, 65536, 8, 1.0)),
        ("swift-262k-dflash2", ("some-model", 262144, 262144, 2, 1.0)),
        ("yarn-420k-mtp", ("some-model", 420000, 420000, 2, 2.0)),
        ("yarn-555k-c3", ("some-model", 555000, 555000, 3, 2.12)),
        ("long-600k-c1", ("some-model", 600000, 600000, 1, 2.3)),
        ("nvfp4-8lane", ("some-model", 65536, 524288, 8, 1.0)),
    ],
)
def test_the_shapes_of_the_shipped_profiles(tmp_path: Path, name: str, values: tuple[object, ...]) -> None:
    settings = load(sources(tmp_path, "" if name == "tiny" else MODEL, profile=name)).settings
    engine = settings.engine
    assert values == (
        settings.model.artifact,
        engine.max_context,
        engine.kv_capacity,
        engine.max_concurrency,
        engine.rope_scaling_factor,
    )


def test_a_profile_of_the_operator_hides_the_shipped_one(tmp_path: Path) -> None:
    resolved = load(sources(tmp_path, MODEL, profile="tiny", profiles={"tiny": "[engine]\nmax_context = 64\n"}))
    assert (resolved.settings.engine.max_context, resolved.settings.engine.max_concurrency) == (64, 1)


def test_a_profile_of_the_operator_extends_a_shipped_one(tmp_path: Path) -> None:
    text = 'extends = "tiny"\n[engine]\nmax_context = 64\n'
    resolved = load(sources(tmp_path, "", profile="mine", profiles={"mine": text}))
    assert (resolved.settings.engine.max_context, resolved.settings.engine.max_concurrency) == (64, 8)


def test_the_parent_applies_first_and_four_are_allowed(tmp_path: Path) -> None:
    chain = {f"p{n}": f'extends = "p{n + 1}"\nqueue.max_pending = {n}\nqueue.per_key_max = {n}\n' for n in (1, 2, 3)}
    chain["p4"] = "queue.max_pending = 4\nqueue.pending_timeout_ms = 4\n"
    queue = load(sources(tmp_path, MODEL, profile="p1", profiles=chain)).settings.queue
    assert (queue.max_pending, queue.per_key_max, queue.pending_timeout_ms) == (1, 1, 4)


def test_five_in_a_chain_are_refused(tmp_path: Path) -> None:
    chain = {f"p{n}": f'\nextends = "p{n + 1}"\n' for n in range(1, 5)} | {"p5": ""}
    assert refusal(sources(tmp_path, MODEL, profile="p1", profiles=chain)) == [
        f"{tmp_path}/profiles/p4.toml:2: extends: more than 4 profiles in a chain"
    ]


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    chain = {"a": 'extends = "b"\n', "b": '#\nextends = "a"\n'}
    assert refusal(sources(tmp_path, MODEL, profile="a", profiles=chain)) == [
        f"{tmp_path}/profiles/b.toml:2: extends: profiles extend each other in a cycle: a -> b -> a"
    ]


def test_an_unknown_profile_lists_the_known_ones(tmp_path: Path) -> None:
    config = sources(tmp_path, 'profile = "tinny"\n' + MODEL, profiles={"mine": ""})
    assert refusal(config) == [
        f'{tmp_path}/ninferd.toml:1: profile: no profile "tinny" in {tmp_path}/profiles or among the shipped ones; '
        f"known: {', '.join(sorted([*_SHIPPED, 'mine']))}"
    ]


@pytest.mark.parametrize("name", ["../etc/x", "", "a/b", ".hidden", "x" * 65])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    assert refusal(sources(tmp_path, MODEL, profile=name)) == [
        "command line: profile: a profile name has letters, digits, '.', '_' and '-' only"
    ]


def test_names_must_be_strings(tmp_path: Path) -> None:
    assert refusal(sources(tmp_path, "profile = 5\n" + MODEL)) == [
        f"{tmp_path}/ninferd.toml:1: profile: the name of one profile expected"
    ]
    hidden = sources(tmp_path, "profile = 5\n" + MODEL, profile="tiny")  # it would be used one day
    assert len(refusal(hidden)) == 1
    config = sources(tmp_path, MODEL, profile="a", profiles={"a": "\nextends = ['b']\n"})
    assert refusal(config) == [f"{tmp_path}/profiles/a.toml:2: extends: the name of one profile expected"]


def test_a_profile_with_a_syntax_error_is_named(tmp_path: Path) -> None:
    config = sources(tmp_path, MODEL, profile="a", profiles={"a": "x = \n"})
    assert refusal(config) == [f"{tmp_path}/profiles/a.toml:1: TOML syntax: Invalid value (column 5)"]
