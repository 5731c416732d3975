"""Frontend files of an artifact: taken as they are, or made from what says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.convert.frontend import collect_frontend
from tests.support.frontends import FrontendDirectory

COMPLETE = {
    "tokenizer.json": '{"model": {}}',
    "tokenizer_config.json": "{}",
    "chat_template.jinja": "{{ messages }} — é",
    "generation_config.json": '{"eos_token_id": [1, 2]}',
    "preprocessor_config.json": "{}",
    "video_preprocessor_config.json": "{}",
}


def collected(directory: Path, files: dict[str, str], *components: str) -> tuple[dict[str, bytes], list[str]]:
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return collect_frontend(FrontendDirectory(directory), components or ("text",))


def test_files_are_copied_byte_by_byte(tmp_path: Path) -> None:
    contents, notes = collected(tmp_path, COMPLETE, "text", "vision", "mtp")
    assert contents == {name: text.encode() for name, text in COMPLETE.items()}
    assert list(contents) == list(COMPLETE)
    assert notes == []


def test_files_of_components_that_are_left_out_are_not_taken(tmp_path: Path) -> None:
    contents, _ = collected(tmp_path, COMPLETE, "text")
    assert list(contents) == list(COMPLETE)[:4]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    contents, notes = collected(tmp_path, {"tokenizer.json": "{}"}, "text", "vision")
    assert list(contents) == ["tokenizer.json"]
    assert notes == [f"{tmp_path}/{name}: is missing, so the artifact goes without it" for name in list(COMPLETE)[1:]]


@pytest.mark.parametrize(
    ("stored", "template"),
    [
        ("A", "A"),
        ([{"name": "rag", "template": "B"}, {"name": "default", "template": "A"}], "A"),
        ([{"name": "rag", "template": "B"}], None),
        (7, None),
    ],
)
def test_the_template_of_the_tokenizer_configuration(tmp_path: Path, stored: Any, template: str | None) -> None:
    files = {key: text for key, text in COMPLETE.items() if key != "chat_template.jinja"}
    contents, notes = collected(tmp_path, files | {"tokenizer_config.json": json.dumps({"chat_template": stored})})
    assert contents.get("chat_template.jinja") == (template.encode() if template else None)
    missing = f"{tmp_path}/chat_template.jinja: is missing, so the artifact goes without it"
    assert notes == ["chat_template.jinja is taken from tokenizer_config.json" if template else missing]


@pytest.mark.parametrize("config", [{"eos_token_id": 7}, {"text_config": {"eos_token_id": 7}}])
def test_stop_tokens_of_the_configuration_are_kept(tmp_path: Path, config: dict[str, Any]) -> None:
    files = {key: text for key, text in COMPLETE.items() if key != "generation_config.json"}
    contents, notes = collected(tmp_path, files | {"config.json": json.dumps(config)})
    assert json.loads(contents["generation_config.json"]) == {"eos_token_id": 7}
    assert notes == ["generation_config.json is made from eos_token_id of config.json"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", b"{", "tokenizer.json: is not valid JSON"),
        ("generation_config.json", b"[]", "generation_config.json: must hold a JSON object"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: is not UTF-8"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    collected(tmp_path, COMPLETE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem):
        collect_frontend(FrontendDirectory(tmp_path), ("text",))
