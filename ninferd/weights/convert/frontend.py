"""The frontend files that go into an artifact."""

from __future__ import annotations

import json
from typing import Any

from ninferd.weights.convert.inventory import ROLES
from ninferd.weights.resources import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    FrontendFiles,
    json_resource,
    place,
    text_resource,
)


def collect_frontend(files: FrontendFiles, components: tuple[str, ...]) -> tuple[dict[str, bytes], list[str]]:
    """Content of each file that the components have, and a note for each that is missing or had to be made.

    InputError if one is not UTF-8, or not JSON though it should be.
    """
    contents: dict[str, bytes] = {}
    notes = []
    for name in (name for component in components for name in ROLES.get(component, ())):
        if name.endswith(".json"):
            json_resource(files, name)
        text = text_resource(files, name)
        if not text:
            text, note = _made(files, name)
            notes.append(note)
        if text:
            contents[name] = text.encode()
    return contents, notes


def _made(files: FrontendFiles, name: str) -> tuple[str | None, str]:
    """What stands in for a missing file, and a note about it."""
    if name == CHAT_TEMPLATE:
        template = _configured_template(json_resource(files, TOKENIZER_CONFIG) or {})
        if template is not None:
            return template, f"{name} is taken from {TOKENIZER_CONFIG}"
    if name == GENERATION_CONFIG:
        eos = _eos_token_id(files.config)
        if eos is not None:
            return json.dumps({"eos_token_id": eos}), f"{name} is made from eos_token_id of config.json"
    return None, f"{place(files, name)}: is missing, so the artifact goes without it"


def _configured_template(tokenizer_config: dict[str, Any]) -> str | None:
    """The template itself, or the one called "default" among several."""
    stored = tokenizer_config.get("chat_template")
    if isinstance(stored, list):
        named = [entry for entry in stored if isinstance(entry, dict) and entry.get("name") == "default"]
        stored = named[0].get("template") if named else None
    return stored if isinstance(stored, str) else None


def _eos_token_id(config: dict[str, Any]) -> object:
    nested = config.get("text_config")
    for table in (config, nested if isinstance(nested, dict) else {}):
        if table.get("eos_token_id") is not None:
            return table["eos_token_id"]
    return None
