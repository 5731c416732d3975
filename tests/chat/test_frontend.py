from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ninferd.chat.conversation import Conversation, Message, PastToolCall
from ninferd.chat.errors import ContextLengthError, FrontendError, PromptError
from ninferd.errors import InputError
from tests.support.frontends import frontend_of, make_settings, tiny_directory, tiny_frontend

FRONTEND = tiny_frontend()
QUESTION = Message("user", "q")
PING: dict[str, Any] = {"type": "function", "function": {"name": "ping"}}


def decoded(conversation: Conversation) -> str:
    prompt = FRONTEND.prepare(conversation, make_settings(), max_context=2000)
    return FRONTEND.tokenizer.decode(prompt.identity.to_list())


def model_directory(target: Path, **changes: Any) -> Path:
    """A copy of the small files of the embedded model; None deletes a file, a dict replaces its JSON."""
    for path in tiny_directory().iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, target / path.name)
    for name, content in changes.items():
        path = target / name.replace("__", ".")
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return target


def test_prompt_of_a_question() -> None:
    prompt = FRONTEND.prepare(Conversation((QUESTION,)), make_settings(), max_context=2000)
    assert decoded(Conversation((QUESTION,))) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert prompt.starts_in_reasoning
    assert prompt.enable_thinking
    assert not prompt.shows_special_tokens


def test_only_callable_tools_are_parsed_but_all_are_shown() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    conversation = Conversation((QUESTION,), tools=(PING, other), callable_tools=frozenset({"ping"}))
    prompt = FRONTEND.prepare(conversation, make_settings(), max_context=2000)
    assert set(prompt.tools) == {"ping"}
    assert '"name": "other"' in decoded(conversation)
    assert prompt.shows_special_tokens


@pytest.mark.parametrize(
    ("forced", "seed"), [("ping", "<tool_call>\n<function=ping>\n"), ("", "<tool_call>\n<function")]
)
def test_forced_call_seeds_the_answer(forced: str, seed: str) -> None:
    conversation = Conversation((QUESTION,), tools=(PING,), callable_tools=frozenset({"ping"}), forced_call=forced)
    prompt = FRONTEND.prepare(conversation, make_settings(), max_context=2000)
    assert prompt.seed_text == seed
    assert decoded(conversation).endswith(f"<think>\n\n</think>\n\n{seed}")
    assert FRONTEND.tokenizer.id_of("<tool_call>") in prompt.identity.to_list()[-40:]
    assert not prompt.starts_in_reasoning


@pytest.mark.parametrize("forced", ["get_weather", ""])
def test_the_seed_ends_where_the_models_own_calls_have_a_token_boundary(forced: str) -> None:
    """Held to the shipped vocabulary, which has a token ``=get``."""
    tokenizer = Tokenizer.from_file(str(tiny_directory() / "tokenizer.json"))
    tool = {"type": "function", "function": {"name": "get_weather"}}
    conversation = Conversation(
        (QUESTION,), tools=(tool,), callable_tools=frozenset({"get_weather"}), forced_call=forced
    )
    seed = FRONTEND.prepare(conversation, make_settings(), max_context=2000).seed_text
    call = tokenizer.encode("<tool_call>\n<function=get_weather>\n<parameter=city>\n", add_special_tokens=False).ids
    opener = tokenizer.encode(seed, add_special_tokens=False).ids
    assert call[: len(opener)] == opener


def with_call(arguments: str) -> Conversation:
    return Conversation((QUESTION, Message("assistant", "", "", (PastToolCall("1", "f", arguments),)), QUESTION))


def test_past_arguments_are_rendered_as_written() -> None:
    text = decoded(with_call('{"z": 100e-2, "a": {"y": 7.0, "b": [1E3]}, "s": "x"}'))
    assert "<parameter=z>\n100e-2\n</parameter>\n<parameter=a>\n" in text
    assert '{"y": 7.0, "b": [1E3]}' in text


def test_empty_arguments_are_an_empty_object() -> None:
    assert "<function=f>\n</function>" in decoded(with_call(" "))


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "nope", "{" * 10_000])
def test_unusable_arguments(arguments: str) -> None:
    with pytest.raises(PromptError, match="arguments of the past call to 'f' are not"):
        decoded(with_call(arguments))


def test_template_refusals_carry_its_words() -> None:
    with pytest.raises(PromptError, match="no user message"):
        decoded(Conversation((Message("assistant", "x"),)))


def test_prompt_longer_than_the_context() -> None:
    conversation = Conversation((Message("user", "word " * 500),))
    with pytest.raises(ContextLengthError) as caught:
        FRONTEND.prepare(conversation, make_settings(), max_context=100)
    assert caught.value.max_context == 100
    assert caught.value.prompt_tokens == len(FRONTEND.prepare(conversation, make_settings(), max_context=9000))


def test_hopelessly_long_text_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: object) -> list[int]:
        raise AssertionError("tokenised")

    monkeypatch.setattr(FRONTEND.tokenizer, "encode_rendered", never)
    with pytest.raises(ContextLengthError, match="more than 100 tokens"):
        FRONTEND.prepare(Conversation((Message("user", "a" * 100_000),)), make_settings(), max_context=100)


def test_prompt_of_exactly_the_context_fits() -> None:
    length = len(FRONTEND.prepare(Conversation((QUESTION,)), make_settings(), max_context=2000))
    assert len(FRONTEND.prepare(Conversation((QUESTION,)), make_settings(), max_context=length)) == length
    with pytest.raises(ContextLengthError):
        FRONTEND.prepare(Conversation((QUESTION,)), make_settings(), max_context=length - 1)


@pytest.mark.parametrize(
    ("changes", "stop_ids"),
    [
        pytest.param({"generation_config__json": {"eos_token_id": [7, 8]}}, (7, 8), id="generation_config list"),
        pytest.param({"generation_config__json": {"eos_token_id": 7}}, (7,), id="generation_config number"),
        pytest.param({"generation_config__json": None, "config__json": {"eos_token_id": 5}}, (5,), id="config"),
        pytest.param(
            {"generation_config__json": {}, "config__json": {"text_config": {"eos_token_id": 6}}},
            (6,),
            id="text_config",
        ),
    ],
)
def test_stop_tokens(tmp_path: Path, changes: dict[str, Any], stop_ids: tuple[int, ...]) -> None:
    assert frontend_of(model_directory(tmp_path, **changes)).stop_token_ids == stop_ids


def test_template_of_the_configuration_replaces_the_models(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[0].content }}!")
    frontend = frontend_of(tiny_directory(), make_settings(template={"file": str(path)}))
    prompt = frontend.prepare(Conversation((QUESTION,)), make_settings(), max_context=100)
    assert frontend.tokenizer.decode(prompt.identity.to_list()) == "q!"


def test_template_inside_tokenizer_config(tmp_path: Path) -> None:
    config = {"chat_template": "{{ eos_token }}{{ messages[0].content }}", "eos_token": {"content": "<|im_end|>"}}
    directory = model_directory(tmp_path, chat_template__jinja=None, tokenizer_config__json=config)
    frontend = frontend_of(directory)
    prompt = frontend.prepare(Conversation((QUESTION,)), make_settings(), max_context=100)
    assert prompt.identity.to_list()[0] == frontend.tokenizer.id_of("<|im_end|>")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"chat_template__jinja": None}, r"chat_template\.jinja: is missing; add one, or set", id="no template"
        ),
        pytest.param({"chat_template__jinja": "{% if %}"}, r"chat_template\.jinja: .*line 1", id="template syntax"),
        pytest.param({"chat_template__jinja": "{{ nope.x }}"}, r"does not render", id="template fails on everything"),
        pytest.param({"tokenizer__json": None}, r"tokenizer\.json: is missing, and a model", id="no tokenizer"),
        pytest.param({"generation_config__json": "{"}, r"generation_config\.json: is not valid JSON", id="broken JSON"),
        pytest.param(
            {"generation_config__json": {}, "config__json": {}}, "names an eos_token_id", id="no end of an answer"
        ),
        pytest.param(
            {"generation_config__json": {}, "config__json": {"text_config": [1]}},
            "names an eos_token_id",
            id="text_config of no kind",
        ),
    ],
)
def test_unusable_directories_are_refused_by_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        frontend_of(model_directory(tmp_path, **changes))


def test_template_kwargs_of_the_configuration_are_checked() -> None:
    with pytest.raises(FrontendError, match=r"template\.kwargs: .*'tools' is set by the server"):
        frontend_of(tiny_directory(), make_settings(template={"kwargs": {"tools": []}}))


def test_template_file_that_would_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"t\.jinja: cannot be read: not a regular file but a FIFO"):
        frontend_of(tiny_directory(), make_settings(template={"file": str(path)}))


def test_template_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(FrontendError, match=r"t\.jinja: is not UTF-8"):
        frontend_of(tiny_directory(), make_settings(template={"file": str(path)}))
