"""Rules between keys. Each violation names the key whose place in the files is reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ninferd.config.schema import Settings

Violation = tuple[str, str]
"""Key, reason."""

MAX_VISION_PROMPT_MIB = 384  # 131072 patches x 1536 features x 2 bytes
DRAFT_TOKENS_MAX = {"mtp": 5, "dflash": 15, "dflash2": 15}
CACHE_CAPACITY_KEYS = (
    "cache.device_state_slots",
    "cache.host_state_slots",
    "cache.host_kv_mib",
    "cache.host_pinned_max_mib",
    "cache.max_private_continuations",
    "cache.max_shared_prefixes",
    "cache.max_long_anchors",
)


def violations(settings: Settings, is_given: Callable[[str], bool]) -> Iterator[Violation]:
    """Broken rules; ``is_given`` says whether a key was set explicitly, be it to its default."""
    yield from _engine(settings)
    yield from _prefix_reuse(settings, is_given)
    yield from _speculation(settings)
    yield from _files(settings)
    if settings.server.stats_port == settings.server.port:
        yield "server.stats_port", f"must differ from server.port ({settings.server.port})"
    media = settings.media
    if (media.vision or media.vision_cpu) and media.live_mib < MAX_VISION_PROMPT_MIB:
        yield (
            "media.live_mib",
            f"{media.live_mib} cannot hold one vision prompt; at least {MAX_VISION_PROMPT_MIB} needed",
        )


def warnings(settings: Settings) -> Iterator[Violation]:
    """Legal combinations that cannot mean what they say."""
    budget, output = settings.thinking.default_budget, settings.limits.default_max_tokens
    if budget is not None and output != "context" and budget >= output:
        yield "thinking.default_budget", f"{budget} can never be reached below limits.default_max_tokens = {output}"


def _engine(settings: Settings) -> Iterator[Violation]:
    engine = settings.engine
    if isinstance(engine.kv_capacity, int) and engine.kv_capacity < engine.max_context:
        yield (
            "engine.kv_capacity",
            f"{engine.kv_capacity} cannot hold one request of engine.max_context = {engine.max_context} tokens",
        )
    longest = int(engine.rope_scaling_original_context * engine.rope_scaling_factor)
    if engine.max_context > longest:
        yield (
            "engine.max_context",
            f"{engine.max_context} is beyond engine.rope_scaling_original_context x engine.rope_scaling_factor "
            f"= {longest}",
        )


def _prefix_reuse(settings: Settings, is_given: Callable[[str], bool]) -> Iterator[Violation]:
    if not settings.engine.prefix_reuse:
        for name in filter(is_given, CACHE_CAPACITY_KEYS):
            yield name, "has no meaning with engine.prefix_reuse = false; remove one of them"


def _speculation(settings: Settings) -> Iterator[Violation]:
    spec = settings.spec
    if spec.backend is None:
        if spec.draft_tokens is not None:
            yield "spec.draft_tokens", "needs spec.backend"
        if spec.lm_head_draft:
            yield "spec.lm_head_draft", "needs spec.backend"
        return
    most = DRAFT_TOKENS_MAX[spec.backend]
    if spec.draft_tokens is None:
        yield "spec.backend", f'"{spec.backend}" needs spec.draft_tokens, 1..{most}'
    elif spec.draft_tokens > most:
        yield "spec.draft_tokens", f'{spec.draft_tokens} is more than "{spec.backend}" can draft, 1..{most}'
    if spec.backend == "dflash" and settings.engine.rope_scaling_factor > 1:
        yield "engine.rope_scaling_factor", 'cannot be combined with spec.backend = "dflash"'


def _files(settings: Settings) -> Iterator[Violation]:
    path = settings.request_log.path
    if path is None:
        return
    if os.path.realpath(path) == os.path.realpath(settings.model.artifact):
        yield "request_log.path", "is the model artifact"
    elif not os.access(path.parent, os.X_OK) or not path.parent.is_dir():
        yield "request_log.path", f"its directory {path.parent} does not exist or is closed to this user"
