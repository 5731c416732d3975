"""The text side of a model that is one file: the same as from a directory, and errors that name file and resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninferd.chat.conversation import Conversation, Message
from ninferd.chat.frontend import ChatFrontend
from ninferd.errors import InputError
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.identity import model_identity
from ninferd.weights.locate import artifact_path
from tests.support.frontends import ARTIFACT, make_settings, tiny_directory, tiny_frontend
from tests.weights.raw_artifact import CONFIG, RawArtifact, old_artifact

RESOURCES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
QUESTION = Conversation((Message("user", "q"),))


def artifact(path: Path, *, vocab_size: int = 4096, **changes: bytes | None) -> Path:
    """With the embedded model's frontend, some of its files changed (``tokenizer__json=b"..."``) or left out (None)."""
    raw = RawArtifact({"text": {"config": CONFIG | {"vocab_size": vocab_size}}})
    replaced = {name.replace("__", "."): content for name, content in changes.items()}
    for name in RESOURCES:
        content = replaced.get(name, (tiny_directory() / name).read_bytes())
        if content is not None:
            raw.resource("text", name, content)
    return raw.write(path / "m.ninfer")


def load(path: Path, **tables: Any) -> ChatFrontend:
    return ChatFrontend.load(ArtifactSource.open(path), make_settings(**tables))


def prompt(frontend: ChatFrontend) -> list[int]:
    return frontend.prepare(QUESTION, make_settings(), max_context=2000).identity.to_list()


def test_prompts_are_those_of_the_directory(tmp_path: Path) -> None:
    path = artifact(tmp_path)
    frontend = load(path)
    assert prompt(frontend) == prompt(tiny_frontend())
    assert frontend.stop_token_ids == tiny_frontend().stop_token_ids
    assert frontend.model_identity == model_identity(path) != tiny_frontend().model_identity


def test_the_embedded_artifact_has_the_frontend_of_its_directory() -> None:
    source = ArtifactSource.open(artifact_path(ARTIFACT))
    for name in RESOURCES:
        assert source.resource(name) == (tiny_directory() / name).read_bytes()
    assert prompt(ChatFrontend.load(source, make_settings())) == prompt(tiny_frontend())


def test_a_configured_template_replaces_the_artifacts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[0].content }}!")
    frontend = load(artifact(tmp_path, chat_template__jinja=b"\xff"), template={"file": str(path)})
    assert frontend.tokenizer.decode(prompt(frontend)) == "q!"


def test_rows_beyond_the_tokens_are_fine(tmp_path: Path) -> None:
    assert load(artifact(tmp_path, vocab_size=4224)).tokenizer.token_count == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer__json": None},
            r"m\.ninfer: resource tokenizer\.json: is missing, and a model cannot be talked to",
        ),
        ({"tokenizer__json": b"\xff{}"}, r"m\.ninfer: resource tokenizer\.json: is not UTF-8: .* at byte 0"),
        ({"tokenizer__json": b"{"}, r"m\.ninfer: resource tokenizer\.json: is not valid JSON"),
        ({"tokenizer_config__json": b"[]"}, r"resource tokenizer_config\.json: must hold a JSON object, not list"),
        ({"chat_template__jinja": b"a\xc3("}, r"resource chat_template\.jinja: is not UTF-8: .* at byte 1"),
        ({"chat_template__jinja": b"{% if %}"}, r"m\.ninfer: resource chat_template\.jinja: .*line 1"),
        ({"chat_template__jinja": None}, r"resource chat_template\.jinja: is missing; add one, or set template\.file"),
        ({"chat_template__jinja": b"{{ no.x }}"}, r"resource chat_template\.jinja: .* does not render"),
        ({"generation_config__json": b"{}"}, r"resource generation_config\.json: .* names an eos_token_id"),
        (
            {"generation_config__json": b'{"eos_token_id": [1, 4096]}'},
            r"resource generation_config\.json: eos_token_id 4096 is no token; the tokenizer has ids 0 to 4095",
        ),
        ({"vocab_size": 4095}, r"resource tokenizer\.json: has token ids up to 4095, but the model has 4095 rows only"),
    ],
    ids=[
        "no tokenizer",
        "encoding",
        "cut",
        "list",
        "template encoding",
        "syntax",
        "no template",
        "fails",
        "no end",
        "end that is no token",
        "rows",
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(artifact(tmp_path, **changes))


def test_a_resource_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Its size stands in the directory; the file is sparse."""
    size = (256 << 20) + 1
    record = {"name": "frontend/tokenizer.json", "kind": "resource", "encoding": "raw-bytes-v1", "offset": 0}
    root = {"model_id": "qwen3.8-27b", "objects": [record | {"bytes": size}]}
    source = ArtifactSource.open(old_artifact(tmp_path / "m.ninfer", root, 1, {}, size))
    with pytest.raises(InputError, match=r"object frontend/tokenizer\.json: has 268435457 bytes; at most 268435456"):
        source.resource("tokenizer.json")
