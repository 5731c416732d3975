"""The effective configuration as text."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.config.describe import plain, toml_text
from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from ninferd.config.rules import violations
from ninferd.config.show import as_json, as_toml, select
from ninferd.errors import InputError
from tests.config.support import MODEL, sources
from tests.config.values import raw_values

_OPEN_KEYS = sorted(name for name, spec in KEYS.items() if not spec.secret and name != "model.artifact")


@given(st.data(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_is_shown_loads_to_the_same_settings(data: st.DataObject, origin: bool) -> None:
    names = data.draw(st.sets(st.sampled_from(_OPEN_KEYS), max_size=6))
    overrides = tuple((name, toml_text(data.draw(raw_values(KEYS[name])))) for name in sorted(names))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        try:
            resolved = load(sources(root, overrides=overrides))
        except InputError:
            return  # a rule between keys
        shown = as_toml(resolved, select(None), origin=origin)
        # Shown values are explicit, so rules about explicit values may object; the values must agree all the same.
        if any(violations(resolved.settings, lambda _key: True)):
            return
        assert load(sources(root, shown)).settings == resolved.settings


def test_one_table_with_origins(tmp_path: Path) -> None:
    resolved = load(sources(tmp_path, MODEL + "[spec]\nbackend = 'mtp'\n", env={"NINFERD_SPEC_DRAFT_TOKENS": "3"}))
    assert as_toml(resolved, select("spec"), origin=True) == (
        "[spec]\n"
        f'backend = "mtp"  # base {tmp_path}/ninferd.toml:4; reload: engine\n'
        "draft_tokens = 3  # environment NINFERD_SPEC_DRAFT_TOKENS; reload: engine\n"
        "lm_head_draft = false  # default; reload: engine\n"
    )
    assert as_toml(resolved, select("model.id"), origin=False) == "[model]\n# id is unset\n"
    by_flag = load(sources(tmp_path, overrides=(("model.id", "x"),)))
    assert as_toml(by_flag, select("model.id"), origin=True) == '[model]\nid = "x"  # command line; reload: engine\n'


def test_a_sub_table_has_its_own_heading(tmp_path: Path) -> None:
    text = as_toml(load(sources(tmp_path)), select("sampling"), origin=False)
    assert text.index("[sampling]") < text.index("# seed is unset") < text.index("\n\n[sampling.post_thinking]\n")


def test_json_has_every_key(tmp_path: Path) -> None:
    resolved = load(sources(tmp_path, MODEL + "[compat]\nmodel_alias = ['é']\n"))
    document = json.loads(as_json(resolved, select(None), origin=False))
    for name, spec in KEYS.items():
        assert _at(document, name) == plain(spec.value(resolved.settings))
    traced = json.loads(as_json(resolved, select(None), origin=True))
    assert _at(traced, "compat.model_alias") == {
        "value": ["é"],
        "layer": "base",
        "file": f"{tmp_path}/ninferd.toml",
        "line": 4,
        "reload": "live",
    }
    assert _at(traced, "server.port") == {
        "value": 8080,
        "layer": "default",
        "file": "built-in",
        "line": None,
        "reload": "process",
    }


def _at(document: Any, name: str) -> Any:
    for part in name.split("."):
        document = document[part]
    return document


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(InputError, match=r"^server.prot: unknown key; did you mean server.port\?$"):
        select("server.prot")
    with pytest.raises(InputError, match=r"^serve: unknown key"):
        select("serve")
