"""Which tokens the draft head has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights.convert.draft_head import read_counts, select_tokens


def test_special_tokens_are_in_and_all_rows_are_sorted_by_count() -> None:
    counts = np.array([5, 9, 1, 9, 0, 7, 2, 100, 100])  # 7 and 8 are rows of the head that no token has
    chosen = select_tokens(counts, 7, {2, 4}, 5)
    assert chosen.tolist() == [1, 3, 5, 2, 4]
    assert chosen.dtype == np.int32


def test_order_equals_a_plain_sort_of_many_ties() -> None:
    counts = np.random.default_rng(3).integers(0, 6, 400)
    special = set(range(0, 400, 7))
    others = sorted(set(range(400)) - special, key=lambda token: (-counts[token], token))[:50]
    expected = sorted([*others, *special], key=lambda token: (-counts[token], token))
    assert select_tokens(counts, 400, special, 50 + len(special)).tolist() == expected


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_impossible_numbers_of_rows(rows: int) -> None:
    with pytest.raises(InputError, match="the tokenizer has 7 tokens, of which 2 are special and always in"):
        select_tokens(np.zeros(9), 7, {2, 4}, rows)


def test_the_first_row_of_counts_is_read(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_bytes(np.arange(12, dtype="<i8").tobytes())
    assert read_counts(path, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is 0 bytes long; counts are int64 rows of 4 tokens, 32 bytes each"),
        (bytes(40), "is 40 bytes long"),
        (np.array([1, -2, 3, 4], "<i8").tobytes(), "the count of token 1 is -2"),
    ],
)
def test_bad_counts(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "counts"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_counts(path, 4)
