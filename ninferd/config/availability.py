"""Keys whose feature this build does not have yet; the schema knows them so that files need not change later."""

from __future__ import annotations

from ninferd.config.describe import toml_text
from ninferd.config.keys import KEYS, KeySpec
from ninferd.config.layers import ResolvedConfig
from ninferd.config.origin import Problem

_LATER_GROUPS = frozenset({"spec", "cache", "media", "responses", "request_log", "monitor", "tools"})
_LATER_KEYS = frozenset(
    {
        "engine.rope_scaling_factor",
        "engine.rope_scaling_original_context",
        "engine.context_cost_presets",
        "engine.cuda_sync",
        "server.stats_port",
        "http.anthropic_ping",
        "http.progress_events",
        "http.trust_forwarded_for",
        "queue.per_key_max",
        "queue.count_tokens_bypass",
        "limits.max_generation_s",
        "template.normalize",
        "template.strip_billing_header",
        "template.drop_reasoning",
        "template.recover_reasoning",
        "thinking.default_budget",
        "thinking.on_capacity",
        "log.stats_interval_ms",
    }
)
_WITHOUT_EFFECT = frozenset({"engine.prefix_reuse"})
"""Switches of optimisations to come, which change no answer: either value is accepted."""


def is_available(spec: KeySpec, value: object) -> bool:
    """Whether this build does what ``value`` asks for; every default is available."""
    return value == spec.default or not is_later(spec)


def is_later(spec: KeySpec) -> bool:
    """Whether nothing of the key's feature is in this build: only its default is accepted, and does nothing."""
    is_post_thinking = spec.path[:-1] == ("sampling", "post_thinking")
    return spec.path[0] in _LATER_GROUPS or spec.name in _LATER_KEYS or is_post_thinking


def build_note(spec: KeySpec) -> str:
    """What this build does not do of a key, as a sentence for its documentation; empty if it does everything."""
    if is_later(spec):
        return "Not in this build."
    return "No effect in this build." if spec.name in _WITHOUT_EFFECT else ""


def unavailable_keys(resolved: ResolvedConfig) -> list[str]:
    """Names of the keys whose effective value this build cannot honour."""
    return [name for name, spec in KEYS.items() if not is_available(spec, spec.value(resolved.settings))]


def unavailable(resolved: ResolvedConfig) -> list[Problem]:
    """One problem ``FILE:LINE: key = value: not available in this build`` for each such key."""
    return [
        Problem(
            str(resolved.origin(name)),
            f"{name} = {toml_text(KEYS[name].value(resolved.settings))}",
            "not available in this build",
        )
        for name in unavailable_keys(resolved)
    ]
