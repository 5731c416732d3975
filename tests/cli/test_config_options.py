"""The options that every configuration-loading command shares."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ninferd.cli.options import IGNORED_FLAGS, add_config_options, sources_from_args
from ninferd.config.keys import KEYS
from ninferd.config.layers import ConfigSources, load


def _parser(*, artifact: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_config_options(parser, positional_artifact=artifact)
    return parser


def _sources(*arguments: str, env: dict[str, str] | None = None, artifact: bool = False) -> ConfigSources:
    return sources_from_args(_parser(artifact=artifact).parse_args(arguments), env or {})


def test_default_places() -> None:
    assert _sources() == ConfigSources(
        base_file=Path("/etc/ninfer/ninferd.toml"),
        profile=None,
        profiles_dir=Path("/etc/ninfer/profiles"),
        conf_dir=Path("/etc/ninfer/conf.d"),
        env={},
    )


def test_a_named_base_file_brings_its_directories_and_must_exist() -> None:
    for found in (_sources("--config", "/x/n.toml"), _sources(env={"NINFERD_CONFIG": "/x/n.toml"})):
        assert found.base_file == Path("/x/n.toml")
        assert (found.profiles_dir, found.conf_dir) == (Path("/x/profiles"), Path("/x/conf.d"))
        assert found.base_file_required
    both = _sources("--config", "/y", env={"NINFERD_CONFIG": "/x"})
    assert both.base_file == Path("/y")
    explicit = _sources("--profiles-dir", "/p", "--conf-dir", "/c", "--profile", "tiny")
    assert (explicit.profiles_dir, explicit.conf_dir, explicit.profile) == (Path("/p"), Path("/c"), "tiny")
    assert not explicit.base_file_required


# Reference flag -> key, from the option table of the specification.
_REFERENCE_FLAGS = {
    "--host": "server.host",
    "--port": "server.port",
    "--stats-port": "server.stats_port",
    "--model-id": "model.id",
    "--weights-profile": "model.weights_profile",
    "--chat-template": "template.file",
    "--default-thinking-budget": "thinking.default_budget",
    "--reasoning-effort": "thinking.default_effort",
    "--device": "engine.device",
    "--max-context": "engine.max_context",
    "--kv-capacity": "engine.kv_capacity",
    "--max-concurrency": "engine.max_concurrency",
    "--prefill-chunk": "engine.prefill_chunk",
    "--kv-dtype": "engine.kv_dtype",
    "--rope-scaling-factor": "engine.rope_scaling_factor",
    "--rope-scaling-original-context": "engine.rope_scaling_original_context",
    "--context-cost-presets": "engine.context_cost_presets",
    "--spec": "spec.backend",
    "--draft-tokens": "spec.draft_tokens",
    "--device-state-slots": "cache.device_state_slots",
    "--host-state-slots": "cache.host_state_slots",
    "--host-kv-mib": "cache.host_kv_mib",
    "--host-ram-reserve-mib": "cache.host_ram_reserve_mib",
    "--host-pinned-max-mib": "cache.host_pinned_max_mib",
    "--host-chunk-mib": "cache.host_chunk_mib",
    "--max-private-continuations": "cache.max_private_continuations",
    "--max-shared-prefixes": "cache.max_shared_prefixes",
    "--max-long-anchors-per-continuation": "cache.max_long_anchors",
    "--max-pending-requests": "queue.max_pending",
    "--pending-timeout-ms": "queue.pending_timeout_ms",
    "--max-request-mib": "limits.max_request_mib",
    "--default-max-tokens": "limits.default_max_tokens",
    "--max-output-tokens": "limits.max_output_tokens",
    "--response-store-max-records": "responses.store_max_records",
    "--response-store-max-mib": "responses.store_max_mib",
    "--temperature": "sampling.temperature",
    "--top-p": "sampling.top_p",
    "--top-k": "sampling.top_k",
    "--min-p": "sampling.min_p",
    "--presence-penalty": "sampling.presence_penalty",
    "--frequency-penalty": "sampling.frequency_penalty",
    "--seed": "sampling.seed",
    "--media-cache-mib": "media.cache_mib",
    "--media-live-mib": "media.live_mib",
    "--media-preprocess-threads": "media.preprocess_threads",
    "--request-log-jsonl": "request_log.path",
    "--request-log-max-mib": "request_log.max_mib",
    "--request-log-keep": "request_log.keep",
    "--log-level": "log.level",
    "--log-stats-interval-ms": "log.stats_interval_ms",
}
_REFERENCE_SWITCHES = {
    "--cors": ("server.cors", "true"),
    "--no-thinking": ("thinking.enabled", "false"),
    "--preserve-thinking": ("thinking.preserve", "true"),
    "--no-cuda-graph": ("engine.cuda_graph", "false"),
    "--no-prefix-reuse": ("engine.prefix_reuse", "false"),
    "--lm-head-draft": ("spec.lm_head_draft", "true"),
    "--tolerant-tool-calls": ("tools.tolerant", "true"),
    "--greedy": ("sampling.greedy", "true"),
    "--vision": ("media.vision", "true"),
    "--vision-cpu": ("media.vision_cpu", "true"),
}


@pytest.mark.parametrize(("flag", "key"), _REFERENCE_FLAGS.items())
def test_a_reference_flag_sets_its_key(flag: str, key: str) -> None:
    assert _sources(flag, "some text").overrides == ((key, "some text"),)
    assert _sources(f"{flag}=-2").overrides == ((key, "-2"),)


@pytest.mark.parametrize(("flag", "override"), _REFERENCE_SWITCHES.items())
def test_a_reference_switch_and_its_twin(flag: str, override: tuple[str, str]) -> None:
    assert _sources(flag).overrides == (override,)
    twin = flag.replace("--no-", "--") if "--no-" in flag else flag.replace("--", "--no-")
    opposite = (override[0], "true" if override[1] == "false" else "false")
    assert _sources(twin).overrides == (opposite,)


def test_there_are_no_other_flags() -> None:
    keys = {*_REFERENCE_FLAGS.values(), *(key for key, _ in _REFERENCE_SWITCHES.values())}
    assert {name for name, spec in KEYS.items() if spec.flag is not None} == keys


def test_the_order_of_flags_and_set_is_kept(tmp_path: Path) -> None:
    found = _sources(
        "m", "--port", "1", "--set", "server.port = 2", "--cors", "--no-cors", "--set", "model.id=a=b", artifact=True
    )
    assert found.overrides == (
        ("server.port", "1"),
        ("server.port", "2"),
        ("server.cors", "true"),
        ("server.cors", "false"),
        ("model.id", "a=b"),
        ("model.artifact", "m"),
    )
    settings = load(found).settings
    assert (settings.server.port, settings.server.cors, settings.model.id) == (2, False, "a=b")
    assert _sources(artifact=True).overrides == ()


def test_two_parsers_do_not_share_what_they_collected() -> None:
    parser = _parser()
    parser.parse_args(["--port", "1"])
    assert parser.parse_args([]).config_overrides == []


@pytest.mark.parametrize("arguments", [["--api-key", "hunter2"], ["--api-key=hunter2"]])
def test_a_key_on_the_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _parser().parse_args(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "every user of the machine can read a command line" in error
    assert "server.api_keys_file" in error
    assert "hunter2" not in error


def test_set_needs_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--set", "server.port"])
    assert "argument --set: GROUP.NAME=VALUE expected" in capsys.readouterr().err


@pytest.mark.parametrize("flag", IGNORED_FLAGS)
def test_flags_of_older_engines_are_accepted_with_a_warning(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _sources(flag, "5").overrides == ()
    assert capsys.readouterr().err.startswith(f"ninferd: warning: {flag} is ignored: ")


def test_help_names_every_flag() -> None:
    text = _parser(artifact=True).format_help()
    assert all(flag in text for flag in _REFERENCE_FLAGS)
    assert "--no-cors" in text
