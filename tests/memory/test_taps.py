"""Planned snapshot positions: each rule by hand, then properties over random prompts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.memory.identity import MediaItem, Tokens
from ninferd.memory.taps import PromptOutline, Tap, TapRules, chunk_ends, plan_taps

CHUNK = 1024
RULES = TapRules(CHUNK)


def _prompt(length: int, *media: tuple[int, int]) -> Tokens:
    items = tuple(MediaItem(b"", "image", (1, 1, 1), start, end) for start, end in media)
    return Tokens(np.zeros(length, np.int32), np.zeros(length, np.uint8), items)


def _positions(taps: tuple[Tap, ...]) -> list[int]:
    return [tap.position for tap in taps]


def test_the_chunk_grid_is_cut_at_every_split_and_starts_anew_there() -> None:
    assert list(chunk_ends(0, 2500, 1000, [1200])) == [1000, 1200, 2200, 2500]
    assert list(chunk_ends(300, 2500, 1000, [])) == [1300, 2300, 2500]
    assert list(chunk_ends(5, 5, 1000, [])) == []


def test_a_short_prompt_is_tapped_at_its_turn_boundary_only() -> None:
    assert plan_taps(_prompt(500), PromptOutline(opener=480), 0, RULES) == (Tap(480, "turn_closure", True),)
    assert plan_taps(_prompt(500), PromptOutline(), 0, RULES) == ()


def test_boundaries_markers_opener_prompt_tail_and_ladder() -> None:
    outline = PromptOutline(client_markers=(3000,), opener=19_990, tools_end=700, system_end=900)
    taps = plan_taps(_prompt(20_000), outline, 0, RULES)
    # Chunks end at 700, 900, 1924, 2948, 3000, then every 1024 (4024, ..., 19384), at 19990 and 20000.
    # The prompt's tail would lie at 19990, which is taken. Ladder: 20000 - 4096 = 15904 -> 15288,
    # 20000 - 8192 = 11808 -> 11192, 20000 - 16384 = 3616 -> 3000, which is taken.
    assert _positions(taps) == [700, 900, 3000, 11_192, 15_288, 19_990]
    assert [tap.kind for tap in taps] == [
        "shared_stable_prefix",
        "shared_stable_prefix",
        "shared_stable_prefix",
        "long_anchor",
        "long_anchor",
        "turn_closure",
    ]
    assert [tap.exact for tap in taps] == [True, True, True, False, False, True]


def test_the_tail_of_a_prompt_is_tapped_at_its_last_chunk_end() -> None:
    assert plan_taps(_prompt(3000), PromptOutline(), 0, RULES) == (Tap(2048, "response_replay", False),)
    assert plan_taps(_prompt(2048), PromptOutline(), 0, RULES) == (Tap(1024, "response_replay", False),)
    assert plan_taps(_prompt(3000), PromptOutline(), 2040, RULES) == ()


def test_the_ladder_snaps_back_to_the_start_of_a_message() -> None:
    # 12000 - 4096 = 7904, its message starts at 6200, the chunk end before that is 6144.
    taps = plan_taps(_prompt(12_000), PromptOutline(message_starts=(0, 6200, 11_000)), 0, RULES)
    assert _positions(taps) == [6144, 11_264]


def test_a_request_that_echoes_needs_no_turn_boundary() -> None:
    outline = PromptOutline(opener=480, opener_kind="response_replay")
    assert plan_taps(_prompt(500), outline, 100, RULES, echoes=True) == ()
    assert plan_taps(_prompt(500), outline, 100, RULES) == (Tap(480, "response_replay", True),)


def test_meaningful_taps_closer_than_a_page_collapse_to_the_earliest() -> None:
    outline = PromptOutline(client_markers=(330,), opener=363, tools_end=300, system_end=364)
    assert plan_taps(_prompt(500), outline, 0, RULES) == (
        Tap(300, "shared_stable_prefix", True),
        Tap(364, "shared_stable_prefix", True),
    )


def test_just_behind_the_base_only_markers_and_the_turn_boundary_are_honoured() -> None:
    assert plan_taps(_prompt(500), PromptOutline(system_end=163), 100, RULES) == ()
    assert _positions(plan_taps(_prompt(500), PromptOutline(system_end=164), 100, RULES)) == [164]
    assert _positions(plan_taps(_prompt(500), PromptOutline(client_markers=(101,)), 100, RULES)) == [101]
    assert _positions(plan_taps(_prompt(500), PromptOutline(opener=101), 100, RULES)) == [101]


def test_a_junction_with_another_conversation_is_tapped() -> None:
    assert plan_taps(_prompt(500), PromptOutline(), 0, RULES, junction=256) == (Tap(256, "shared_stable_prefix", True),)


def test_too_many_wishes_keep_the_most_important() -> None:
    outline = PromptOutline(client_markers=(100, 200, 300), opener=900, tools_end=400, system_end=500)
    assert _positions(plan_taps(_prompt(1000), outline, 0, TapRules(CHUNK, max_taps=4))) == [100, 200, 300, 900]


@pytest.mark.parametrize("opener", [0, 1000, 1001])
def test_positions_without_a_token_before_or_after_are_ignored(opener: int) -> None:
    assert plan_taps(_prompt(1000), PromptOutline(opener=opener), 0, RULES) == ()


def test_nothing_is_tapped_inside_an_image() -> None:
    outline = PromptOutline(opener=450)
    assert plan_taps(_prompt(500, (440, 460)), outline, 0, RULES) == ()
    assert plan_taps(_prompt(3000, (2000, 2100)), PromptOutline(), 0, RULES) == ()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_properties_of_any_plan(data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 120_000))
    base = data.draw(st.integers(0, length - 1))
    chunk = data.draw(st.sampled_from([64, 512, 1024, 4096]))
    rules = TapRules(chunk, data.draw(st.integers(1, 8)))
    position = st.integers(0, length)
    outline = PromptOutline(
        client_markers=tuple(data.draw(st.lists(position, max_size=4))),
        opener=data.draw(st.none() | position),
        tools_end=data.draw(st.none() | position),
        system_end=data.draw(st.none() | position),
        message_starts=tuple(sorted(data.draw(st.lists(position, max_size=20)))),
    )
    start = data.draw(position)
    prompt = _prompt(length, (start, min(length, start + 300)))
    taps = plan_taps(prompt, outline, base, rules)
    assert taps == plan_taps(prompt, outline, base, rules)
    assert len(taps) <= rules.max_taps
    assert len(set(_positions(taps))) == len(taps)
    assert all(base < tap.position <= length - 1 and not prompt.splits_media(tap.position) for tap in taps)
    grid = set(chunk_ends(base, length, chunk, [tap.position for tap in taps if tap.exact]))
    assert all(tap.position in grid for tap in taps)
    anchors = [tap.position for tap in taps if tap.kind == "long_anchor"]
    assert len(anchors) <= math.log2(max(2, length / max(4096, 2 * chunk))) + 1
    for anchor in anchors:
        others = [base, *(p for p in _positions(taps) if p != anchor)]
        assert all(abs(anchor - other) >= max(1024, chunk) for other in others)
