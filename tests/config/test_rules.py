"""Rules between keys, from both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.config.layers import load
from ninferd.config.rules import CACHE_CAPACITY_KEYS
from tests.config.support import MODEL, refusal, sources

_BROKEN = [
    (
        "[engine]\nmax_context = 2048\nkv_capacity = 2047",
        "5: engine.kv_capacity: 2047 cannot hold one request of engine.max_context = 2048 tokens",
    ),
    (
        "[engine]\nkv_capacity = 8191",  # below the default context
        "4: engine.kv_capacity: 8191 cannot hold one request of engine.max_context = 8192 tokens",
    ),
    (
        "[engine]\nmax_context = 262145\nkv_capacity = 'auto'",
        "4: engine.max_context: 262145 is beyond engine.rope_scaling_original_context x engine.rope_scaling_factor "
        "= 262144",
    ),
    (
        "[engine]\nrope_scaling_factor = 1.5\nrope_scaling_original_context = 8000\nmax_context = 12001",
        "6: engine.max_context: 12001 is beyond engine.rope_scaling_original_context x engine.rope_scaling_factor "
        "= 12000",
    ),
    ("[spec]\ndraft_tokens = 3", "4: spec.draft_tokens: needs spec.backend"),
    ("[spec]\nlm_head_draft = true", "4: spec.lm_head_draft: needs spec.backend"),
    ("[spec]\nbackend = 'mtp'", '4: spec.backend: "mtp" needs spec.draft_tokens, 1..5'),
    (
        "[spec]\nbackend = 'mtp'\ndraft_tokens = 6",
        '5: spec.draft_tokens: 6 is more than "mtp" can draft, 1..5',
    ),
    (
        "[engine]\nrope_scaling_factor = 2.0\n[spec]\nbackend = 'dflash'\ndraft_tokens = 15",
        '4: engine.rope_scaling_factor: cannot be combined with spec.backend = "dflash"',
    ),
    ("[server]\nport = 9000\nstats_port = 9000", "5: server.stats_port: must differ from server.port (9000)"),
    (
        "[media]\nvision = true\nlive_mib = 383",
        "5: media.live_mib: 383 cannot hold one vision prompt; at least 384 needed",
    ),
    (
        "[media]\nvision_cpu = true\nlive_mib = 383",
        "5: media.live_mib: 383 cannot hold one vision prompt; at least 384 needed",
    ),
    ("[request_log]\npath = 'some-model'", "4: request_log.path: is the model artifact"),
    (
        "[request_log]\npath = '/nowhere/x'",
        "4: request_log.path: its directory /nowhere does not exist or is closed to this user",
    ),
]

_LEGAL = [
    "[engine]\nmax_context = 2048\nkv_capacity = 2048",
    "[engine]\nmax_context = 262144",
    "[engine]\nrope_scaling_factor = 1.5\nrope_scaling_original_context = 8000\nmax_context = 12000",
    "[spec]\nbackend = 'mtp'\ndraft_tokens = 5\nlm_head_draft = true",
    "[spec]\nbackend = 'dflash'\ndraft_tokens = 15",
    "[engine]\nrope_scaling_factor = 2.0\n[spec]\nbackend = 'dflash2'\ndraft_tokens = 15",
    "[server]\nport = 9000\nstats_port = 9001",
    "[media]\nlive_mib = 1",
    "[media]\nvision = true\nlive_mib = 384",
    "[request_log]\npath = '/tmp/x'",
    "[engine]\nprefix_reuse = false",
    "[engine]\nprefix_reuse = false\n[cache]\nhost_ram_reserve_mib = 1\nhost_chunk_mib = 1",
]


@pytest.mark.parametrize(("text", "message"), _BROKEN, ids=[message.split(": ")[1] for _, message in _BROKEN])
def test_a_broken_rule_names_the_key_at_fault(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(sources(tmp_path, f"{MODEL}{text}\n")) == [f"{tmp_path}/ninferd.toml:{message}"]


@pytest.mark.parametrize("text", _LEGAL)
def test_what_keeps_to_the_rules_loads(tmp_path: Path, text: str) -> None:
    assert load(sources(tmp_path, f"{MODEL}{text}\n")).warnings == ()


@pytest.mark.parametrize("key", CACHE_CAPACITY_KEYS)
def test_no_prefix_reuse_excludes_every_given_cache_capacity(tmp_path: Path, key: str) -> None:
    for value in (0, 8):  # 8 is the default of one of them: given is given
        config = sources(tmp_path, MODEL + "[engine]\nprefix_reuse = false\n", overrides=((key, str(value)),))
        assert refusal(config) == [
            f"command line: {key}: has no meaning with engine.prefix_reuse = false; remove one of them"
        ]


def test_there_are_seven_cache_capacities() -> None:
    assert len(set(CACHE_CAPACITY_KEYS)) == 7


def test_broken_rules_are_reported_together(tmp_path: Path) -> None:
    config = sources(tmp_path, MODEL + "[spec]\ndraft_tokens = 1\n[server]\nstats_port = 8080\n")
    assert [problem.split(": ")[1] for problem in refusal(config)] == ["spec.draft_tokens", "server.stats_port"]


@pytest.mark.parametrize(("budget", "output", "warned"), [(9, "10", False), (10, "10", True), (10, "'context'", False)])
def test_a_budget_that_never_fires_is_a_warning(tmp_path: Path, budget: int, output: str, warned: bool) -> None:
    text = f"[thinking]\ndefault_budget = {budget}\n[limits]\ndefault_max_tokens = {output}\n"
    assert [warning.key for warning in load(sources(tmp_path, MODEL + text)).warnings] == (
        ["thinking.default_budget"] if warned else []
    )
