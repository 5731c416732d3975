"""The optimised draft head: which rows of the output head it has, by how often their tokens occur."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.json_file import read_bounded

COUNT_DTYPE = np.dtype("<i8")
MAX_COUNTS_BYTES = 1 << 28


def read_counts(path: Path, vocab_size: int) -> NDArray[np.int64]:
    """The first row ``[vocab_size]`` of a file of int64 counts, little-endian; InputError if it holds no whole row."""
    raw = read_bounded(path, MAX_COUNTS_BYTES)
    row_bytes = vocab_size * COUNT_DTYPE.itemsize
    if not raw or len(raw) % row_bytes:
        raise InputError(
            f"{path}: is {len(raw)} bytes long; counts are int64 rows of {vocab_size} tokens, {row_bytes} bytes each"
        )
    counts = np.frombuffer(raw, COUNT_DTYPE, vocab_size)
    if counts.min() < 0:
        raise InputError(f"{path}: the count of token {int(counts.argmin())} is {counts.min()}; none may be negative")
    return counts


def select_tokens(counts: NDArray[Any], token_count: int, special: Collection[int], rows: int) -> NDArray[np.int32]:
    """Token id of each of ``rows`` rows: all special tokens and the most frequent others, by descending count.

    Ties go to the lower id, and ids from ``token_count`` on are no tokens. As in Neroued/ninfer. InputError if there
    are too few or too many rows for the tokenizer.
    """
    if not max(len(special), 1) <= rows <= token_count:
        raise InputError(
            f"--draft-head-rows: {rows} rows are not possible: the tokenizer has {token_count} tokens, "
            f"of which {len(special)} are special and always in"
        )
    by_count = np.argsort(-counts[:token_count], kind="stable")
    is_forced = np.zeros(token_count, bool)
    is_forced[list(special)] = True
    others = by_count[~is_forced[by_count]][: rows - len(special)]
    is_chosen = is_forced.copy()
    is_chosen[others] = True
    return by_count[is_chosen[by_count]].astype(np.int32)
