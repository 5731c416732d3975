"""Where a prefill stops to take a snapshot of the recurrent state: planned from the prompt alone (Appendix A.3).

Taps are a function of the prompt and of where it resumes, so a cold run and a resumed one share their chunk ends from
the first common tap on. Exact taps end a chunk; flexible ones move back to the chunk end before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.identity import Tokens
from ninferd.memory.snapshots import SnapshotKind

MAX_TAPS: Final = 8
MAX_TAPS_WITHOUT_HOST: Final = 2
_LADDER_GAP_TOKENS: Final = 1024
_LADDER_START_TOKENS: Final = 4096


@dataclass(frozen=True)
class PromptOutline:
    """Positions that whoever renders a prompt knows; each is the number of tokens before it."""

    client_markers: tuple[int, ...] = ()  # where the client asked to cache
    opener: int | None = None  # turn boundary: what is before it will be rendered again, token for token
    opener_kind: Literal["turn_closure", "response_replay"] = "turn_closure"
    tools_end: int | None = None
    system_end: int | None = None
    message_starts: tuple[int, ...] = ()  # ascending


@dataclass(frozen=True, order=True)
class Tap:
    """A snapshot to take once ``position`` tokens are processed."""

    position: int
    kind: SnapshotKind
    exact: bool  # the chunk must end here


@dataclass(frozen=True)
class TapRules:
    """How an engine taps."""

    chunk_tokens: int
    max_taps: int = MAX_TAPS


def plan_taps(
    prompt: Tokens, outline: PromptOutline, base: int, rules: TapRules, *, echoes: bool = False, junction: int = 0
) -> tuple[Tap, ...]:
    """Taps in (base, n - 1], ascending.

    ``base`` is where the prefill starts. ``echoes``: it resumes from an endpoint, so this client repeats generated
    tokens exactly and its turn boundary needs no tap. ``junction``: how far cached pages match beyond any snapshot,
    in tokens; another conversation was here, so this prefix is shared.
    """
    accepted = _exact_taps(prompt, outline, base, rules, echoes=echoes, junction=junction)
    ends = list(chunk_ends(base, len(prompt), rules.chunk_tokens, [tap.position for tap in accepted]))
    for wanted, kind, gap in _flexible_wishes(len(prompt), base, outline, rules):
        at = bisect_right(ends, min(wanted, len(prompt) - 1)) - 1
        if at < 0 or len(accepted) >= rules.max_taps:
            continue
        position = ends[at]
        taken = [base, *(tap.position for tap in accepted)]
        if prompt.splits_media(position) or any(
            -max(gap, 1) < position - other < max(gap, PAGE_TOKENS) for other in taken
        ):
            continue
        accepted.append(Tap(position, kind, exact=False))
    return tuple(sorted(accepted))


def chunk_ends(base: int, length: int, chunk_tokens: int, splits: Iterable[int]) -> Iterator[int]:
    """Ends of the prefill chunks of tokens [base, length): one per chunk, at every split, and at the end."""
    position = base
    for stop in (*sorted(splits), length):
        while position < stop:
            position = min(position + chunk_tokens, stop)
            yield position


def _exact_taps(
    prompt: Tokens, outline: PromptOutline, base: int, rules: TapRules, *, echoes: bool, junction: int
) -> list[Tap]:
    """Taps at places that mean something, most important kinds first if there are too many."""
    wishes: list[tuple[int, int | None, SnapshotKind]] = [
        (0, m, "shared_stable_prefix") for m in outline.client_markers
    ]
    if not echoes:
        wishes.append((1, outline.opener, outline.opener_kind))
    wishes += [(2, at, "shared_stable_prefix") for at in (outline.tools_end, outline.system_end, junction)]
    possible = [
        (position, priority, kind)
        for priority, position, kind in wishes
        if position is not None and base < position < len(prompt) and not prompt.splits_media(position)
    ]
    kept: list[tuple[int, int, SnapshotKind]] = []
    for position, priority, kind in sorted(possible):
        wanted = priority <= 1  # markers and the turn boundary may follow the base closely
        previous = kept[-1][0] if kept else (base - PAGE_TOKENS if wanted else base)
        if position - previous >= PAGE_TOKENS:
            kept.append((position, priority, kind))
    kept.sort(key=lambda each: (each[1], each[0]))
    return [Tap(position, kind, exact=True) for position, _, kind in kept[: rules.max_taps]]


def _flexible_wishes(
    length: int, base: int, outline: PromptOutline, rules: TapRules
) -> Iterator[tuple[int, SnapshotKind, int]]:
    """(position, kind, gap to its neighbours): the end of the prompt, then ever farther steps back from it."""
    yield length - 1, "response_replay", 0
    step = max(_LADDER_START_TOKENS, 2 * rules.chunk_tokens)
    gap = max(_LADDER_GAP_TOKENS, rules.chunk_tokens)
    while (position := length - step) > base:
        yield _snapped(position, outline.message_starts), "long_anchor", gap
        step *= 2


def _snapped(position: int, message_starts: Sequence[int]) -> int:
    """The last start of a message at or before ``position``, if there is one."""
    at = bisect_right(message_starts, position) - 1
    return message_starts[at] if at >= 0 else position
