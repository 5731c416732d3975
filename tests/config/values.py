"""Valid values of every key, drawn from what the schema says it accepts."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import SecretStr

from ninferd.config.keys import KeySpec

_RANGE = re.compile(r"in (-?[\d.]+?)\.\.(-?[\d.]+)(?:, a multiple of (\d+))?")
_WORDS = st.text("abcXYZ019_-", min_size=1, max_size=12)


def raw_values(spec: KeySpec) -> st.SearchStrategy[Any]:
    """TOML values (as tomllib returns them) that the key must take."""
    return _of(spec.annotation, spec)


def _of(annotation: Any, spec: KeySpec) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _of(get_args(annotation)[0], spec)
    if origin in (Union, types.UnionType):
        return st.one_of([_of(branch, spec) for branch in get_args(annotation) if branch is not types.NoneType])
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is tuple:
        return st.lists(_WORDS, max_size=3)
    if origin is dict:
        return st.dictionaries(st.text("abc-_", min_size=1, max_size=6), _WORDS, max_size=3)
    return _scalar(annotation, spec)


def _scalar(annotation: Any, spec: KeySpec) -> st.SearchStrategy[Any]:
    if annotation is bool:
        return st.booleans()
    if annotation in (str, SecretStr, Path):
        if "hexadecimal" in spec.accepted:
            return st.text("0123456789abcdefABCDEF", min_size=64, max_size=64)
        return _WORDS.map(lambda word: f"https://{word}") if "URL" in spec.accepted else _WORDS
    found = _RANGE.search(spec.accepted)
    assert found is not None, spec.accepted
    if annotation is float:
        return st.floats(float(found[1]), float(found[2]))
    low, high, step = int(found[1]), int(found[2]), int(found[3] or 1)
    return st.integers(-(-low // step), high // step).map(lambda number: number * step)
