"""Equality of prefixes: tokens, types and media, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ninferd.memory.identity import Ledger, MediaItem, Tokens

CAT = MediaItem(b"cat", "image", (1, 4, 4), start=70, end=90)
PLACEHOLDER = 9


def _with_image(item: MediaItem, length: int = 200) -> Tokens:
    ids, types = np.arange(length, dtype=np.int32), np.zeros(length, np.uint8)
    ids[item.start : item.end], types[item.start : item.end] = PLACEHOLDER, 1
    return Tokens(ids, types, (item,))


@pytest.mark.parametrize("at", [0, 1, 99, 8191, 8192, 8193, 19_999])
def test_common_prefix_ends_at_the_first_difference(at: int) -> None:
    ids = np.arange(20_000, dtype=np.int32)
    other = ids.copy()
    other[at] += 1
    assert Tokens.of_text(ids).common_prefix(0, Tokens.of_text(other)) == at


def test_common_prefix_from_an_offset_and_of_unequal_lengths() -> None:
    whole = Tokens.of_text(np.arange(100))
    assert whole.common_prefix(64, whole.part(64, 90)) == 26
    assert whole.common_prefix(90, Tokens.of_text(np.arange(90, 300))) == 10
    assert whole.common_prefix(100, whole.part(64, 90)) == 0


def test_types_decide_too() -> None:
    plain = Tokens.of_text(np.arange(10))
    typed = Tokens(plain.ids, np.array([0] * 7 + [1] * 3, np.uint8))
    assert plain.common_prefix(0, typed) == 7


@pytest.mark.parametrize(
    "other",
    [replace(CAT, digest=b"dog"), replace(CAT, modality="video"), replace(CAT, grid=(1, 2, 8)), replace(CAT, end=91)],
    ids=["bytes", "modality", "grid", "span"],
)
def test_s07_another_image_behind_the_same_placeholders_ends_the_prefix(other: MediaItem) -> None:
    first, second = _with_image(CAT), _with_image(other)
    if other.end != CAT.end:
        second = Tokens(first.ids, first.types, (other,))  # the same tokens claimed by another span
    assert first.common_prefix(0, second) == 70
    assert first.common_prefix(64, second.part(64, 128)) == 6
    assert first.common_prefix(64, _with_image(CAT).part(64, 128)) == 64


def test_an_image_that_began_before_the_part_is_compared() -> None:
    cat, dog = _with_image(CAT), _with_image(replace(CAT, digest=b"dog"))
    assert cat.common_prefix(80, dog.part(80, 128)) == 0
    assert cat.common_prefix(90, dog.part(90, 128)) == 38  # both began and ended before: compared by the parent


def test_placeholders_without_an_image_are_another_prefix() -> None:
    cat = _with_image(CAT)
    bare = Tokens(cat.ids, cat.types)
    assert cat.common_prefix(0, bare) == 70
    assert bare.common_prefix(0, cat) == 70


def test_nothing_resumes_inside_an_image() -> None:
    cat = _with_image(CAT)
    assert [cat.splits_media(at) for at in (69, 70, 71, 89, 90)] == [False, False, True, True, False]


def test_a_ledger_appends_behind_its_prompt() -> None:
    prompt = _with_image(CAT)
    ledger = Ledger(prompt)
    for token in range(500, 700):
        ledger.append(token)
    assert len(ledger) == 400
    whole = ledger.upto(400)
    assert whole.ids[200:].tolist() == list(range(500, 700))
    assert whole.common_prefix(0, prompt) == 200
    assert not whole.types[200:].any()
    assert len(ledger.upto(150)) == 150
    assert prompt.ids.tolist() == _with_image(CAT).ids.tolist()  # the caller's array is not written
