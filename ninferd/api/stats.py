"""``GET /stats``: the daemon in one JSON object (serving §10.1). It never waits for the engine."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from ninferd import __version__
from ninferd.api.context import ApiContext
from ninferd.engine.messages import EngineInfo, EngineStats

SCHEMA = "ninfer_serve_stats"
SCHEMA_VERSION = 3

_OUTCOMES = ("started", "done", "rejected", "errors", "cancelled")


@dataclass
class ApiCounters:
    """Monotone counters of the HTTP side, changed on the event loop only."""

    started_unix_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    outcomes: Counter[str] = field(default_factory=Counter)  # started, done, rejected, errors, cancelled
    by_protocol: Counter[str] = field(default_factory=Counter)
    queue_wait_s: float = 0.0
    ttft_s: float = 0.0
    structured_tool_calls: int = 0
    tool_fallbacks: Counter[str] = field(default_factory=Counter)
    ignored: int = 0


def stats_payload(
    context: ApiContext, counters: ApiCounters, info: EngineInfo, stats: EngineStats, model: str
) -> dict[str, Any]:
    """Gauges are as of now or of the engine's last heartbeat; counters are since process start."""
    config = context.config_status()
    now_ms = int(time.time() * 1000)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "timestamp_unix_ms": now_ms,
        "http": {
            "in_flight": context.in_flight.count,
            "max_in_flight": context.max_in_flight(),
        },
        "scheduler": {
            "running": stats.prefilling + stats.decoding,
            "prefilling": stats.prefilling,
            "decode_ready": stats.decoding,
            "waiting": stats.waiting,
        },
        "counters": {
            "steps": stats.steps,
            "prompt_tokens": stats.prompt_tokens,
            "computed_prefill_tokens": stats.prompt_tokens - stats.cached_tokens,
            "committed_decode_tokens": stats.generated_tokens,
            "requests_finished": stats.requests_finished,
            "requests_failed": stats.requests_failed,
            "requests_cancelled": stats.requests_cancelled,
        },
        "cache_reuse": {"reused_prompt_tokens": stats.cached_tokens},
        "pressure": {
            "device_main_kv_occupied_pages": stats.pages_used,
            "device_state_occupied_slots": stats.state_slots_used,
        },
        "memory": _memory(info, stats),
        "kernels": _kernels(info),
        "load": {"model_id": model, "architecture": info.architecture, "load_seconds": info.load_seconds},
        "process": {
            "pid": os.getpid(),
            "version": __version__,
            "started_unix_ms": counters.started_unix_ms,
            "uptime_s": (now_ms - counters.started_unix_ms) / 1000,
            "rss_bytes": psutil.Process().memory_info().rss,
        },
        "engine": {"state": context.engine.state},
        "config": {
            "profile": config.profile,
            "generation": config.generation,
            "last_reload_unix_ms": config.last_reload_unix_ms,
            "last_reload_error": config.last_reload_error,
            "pending_restart": list(config.pending_restart),
        },
        "requests": {
            **{
                outcome: counters.outcomes[outcome]
                for outcome in ("started", "done", "rejected", "errors", "cancelled")
            },
            "by_protocol": {"openai_chat_completions": counters.by_protocol["openai_chat_completions"]},
            "queue_wait_seconds_sum": counters.queue_wait_s,
            "ttft_seconds_sum": counters.ttft_s,
        },
        "tool_calls": {"structured": counters.structured_tool_calls, "fallback": dict(counters.tool_fallbacks)},
        "compat": {"ignored_total": counters.ignored},
    }


def _memory(info: EngineInfo, stats: EngineStats) -> dict[str, Any]:
    return {
        "device": info.device,
        "weights_dtype": info.weights_dtype,
        "kv_dtype": info.kv_dtype,
        "max_context": info.max_context,
        "kv_capacity": info.kv_capacity_tokens,
        "kv_page_tokens": info.page_tokens,
        "kv_capacity_page_groups": stats.pages_total,
        "kv_payload_bytes": info.kv_bytes,
        "state_slots": stats.state_slots_total,
        "sequence_bytes": info.state_bytes,
        "weights_bytes": info.weights_bytes,
        "cuda_graph_bytes": stats.graph_bytes,
        "cuda_graphs": list(stats.graphs),
    }


def _kernels(info: EngineInfo) -> dict[str, Any]:
    """Who serves the model's ops, and what the self-test at the engine's start found."""
    return {
        "device": info.device,
        "arch": info.ops.arch,
        "table": info.ops.table,
        "self_test_ms": sum(group.self_test_ms for group in info.ops.groups),
        "groups": [
            {
                "name": group.name,
                "ops": list(group.ops),
                "implementation": group.implementation,
                "checks": group.checks,
                "worst_kernel": group.worst.kernel if group.worst else None,
                "max_error": group.worst.error if group.worst else None,
                "error_limit": group.worst.limit if group.worst else None,
                "self_test_ms": group.self_test_ms,
                "fallback_reason": group.fallback_reason or None,
                "variants": [
                    {
                        "name": variant.name,
                        "serves": variant.serves,
                        "fallback_reason": variant.fallback_reason or None,
                    }
                    for variant in group.variants
                ],
            }
            for group in info.ops.groups
        ],
    }
