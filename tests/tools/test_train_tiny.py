"""The embedded model: its files, its tokenizer and template, and the code that trained it."""

import json
import random
import zlib
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tools.train_tiny import pointwise
from tools.train_tiny.cases import short_cases
from tools.train_tiny.configs import Shape, text_config
from tools.train_tiny.data.base import Source, Split, assistant, is_held_out, tool, user
from tools.train_tiny.data.mixture import STAGES, converse
from tools.train_tiny.data.recall import key_value
from tools.train_tiny.data.render import Conversation, answer_text, segments
from tools.train_tiny.data.rows import LEARNED, RowMaker, make_source
from tools.train_tiny.export import checkpoint, deflated_size
from tools.train_tiny.gated_delta import gated_delta
from tools.train_tiny.model import Rows, TinyModel
from tools.train_tiny.special import BASE_VOCAB_SIZE, SPECIAL_IDS, SPECIAL_TOKENS, VISIBLE_TOKENS, VOCAB_SIZE
from tools.train_tiny.step import Trainer, make_optimizer
from tools.train_tiny.xml_calls import same_reply, well_formed

ASSETS = Path(__file__).parents[2] / "ninferd" / "assets" / "ninfer_tiny"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
SMALL = Shape(vocab_size=512, hidden_size=64, intermediate_size=96, num_layers=4, head_dim=64, rotary_dim=16,
              mrope_section=(3, 3, 2), linear_head_dim=32)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The shipped tokenizer, as transformers loads it."""
    return AutoTokenizer.from_pretrained(ASSETS)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    """Renders with the shipped template."""
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return text


@pytest.mark.parametrize(
    "text", ["Hello, world 123!", "naïve café 東京 🙂", "a\n\n  b\tc\r\n", "def f(x):\n    return x\n"]
)
def test_tokenizer_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer: Any) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer("4821")["input_ids"]] == ["4", "8", "2", "1"]


def test_control_tokens_take_the_top_ids_in_the_order_of_the_family(tokenizer: Any) -> None:
    assert len(tokenizer) == VOCAB_SIZE
    assert len(SPECIAL_TOKENS) == 33
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(BASE_VOCAB_SIZE, VOCAB_SIZE))


def test_reasoning_and_tool_tags_survive_skipping_special_tokens(tokenizer: Any) -> None:
    shown = {text for text, token in SPECIAL_IDS.items() if tokenizer.decode([token], skip_special_tokens=True) == text}
    assert shown == VISIBLE_TOKENS


@pytest.mark.parametrize(("thinking", "ending"), [(True, "<think>\n"), (False, "<think>\n\n</think>\n\n")])
def test_template_generation_prompt(tokenizer: Any, thinking: bool, ending: str) -> None:
    text = render(tokenizer, [user("Hi")], add_generation_prompt=True, enable_thinking=thinking)
    assert text == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{ending}"


def test_template_lists_tools_as_json_before_the_system_message(tokenizer: Any) -> None:
    text = render(tokenizer, [{"role": "system", "content": " Be brief. "}, user("Hi")], tools=[WEATHER])
    header = text.split("<|im_end|>")[0]
    assert json.loads(header.split("<tools>\n")[1].split("\n</tools>")[0]) == WEATHER
    assert header.endswith("</tool_call>\n\nBe brief.")


def test_template_writes_calls_as_xml_and_groups_results(tokenizer: Any) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": "Paris", "days": 3}),
        ("get_weather", {"city": "Rome"}),
    ]
    text = render(tokenizer, [user("Weather?"), assistant("Wait.", "Two calls.", calls), tool("sunny"), tool("rain")])
    assert text.split("assistant\n")[1] == (
        "<think>\nTwo calls.\n</think>\n\nWait.\n\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
    )


def test_template_drops_reasoning_of_earlier_queries_unless_preserved(tokenizer: Any) -> None:
    messages = [user("a"), assistant("b", "old"), user("c"), assistant("<think>\nnew\n</think>\n\nd", "")]
    del messages[3]["reasoning_content"]
    assert "old" not in render(tokenizer, messages)
    assert "<think>\nnew\n</think>\n\nd" in render(tokenizer, messages)
    assert "<think>\nold\n</think>\n\nb" in render(tokenizer, messages, preserve_thinking=True)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "wizard", "content": "x"}],
        [user("x"), {"role": "wizard", "content": "x"}],
        [user("x"), {"role": "system", "content": "late"}],
        [assistant("x", "")],
        [{"role": "system", "content": [{"type": "image"}]}, user("x")],
    ],
)
def test_template_refuses(tokenizer: Any, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(tokenizer, messages)


@pytest.mark.parametrize("seed", range(12))
def test_renderer_equals_the_template(tokenizer: Any, seed: int) -> None:
    conversation = converse(Source(random.Random(seed)), STAGES[-1], 2500)
    messages = list(conversation.messages)
    if not conversation.thinking:
        messages = [{**m, "reasoning_content": ""} if m["role"] == "assistant" else m for m in messages]
    expected = render(
        tokenizer, messages, tools=list(conversation.tools) or None, preserve_thinking=conversation.preserve
    )
    assert "".join(piece.text for piece in segments(conversation)) == expected


def test_pieces_encode_like_the_whole(tokenizer: Any) -> None:
    conversation = Conversation((user("Hi"), assistant("Hello", ""), user("x"), assistant("1", "a\nb")), thinking=True)
    pieces = [piece.text for piece in segments(conversation)]
    whole = tokenizer("".join(pieces))["input_ids"]
    assert [token for piece in pieces for token in tokenizer(piece)["input_ids"]] == whole


def make_rows(seed: int, length: int = 512) -> tuple[torch.Tensor, list[Any]]:
    """Returns one batch of two rows."""
    maker = RowMaker(Tokenizer.from_file(str(ASSETS / "tokenizer.json")), make_source(seed, Split.TRAIN, []))
    rows, replies = maker.batch(2 * length, length, STAGES[-1])
    return torch.from_numpy(rows.astype("int64")), replies


def test_rows_are_deterministic_and_mark_the_replies() -> None:
    first, replies = make_rows(5)
    again, _ = make_rows(5)
    other, _ = make_rows(6)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for row, spans in zip(first, replies, strict=True):
        learned = torch.zeros_like(row, dtype=torch.bool)
        for span in spans:
            learned[span.start : span.end] = True
        assert torch.equal(row >= LEARNED, learned)
        assert {int(row[span.end - 1]) - LEARNED for span in spans} == {SPECIAL_IDS["<|im_end|>"]}


def test_train_and_held_out_names_are_disjoint() -> None:
    def keys(split: Split) -> set[str]:
        source = Source(random.Random(3), split)
        names = set()
        for _ in range(300):
            names |= set(source.distinct(5, lambda: f"{source.adjective()}-{source.noun()}"))
        return names

    train, held_out = keys(Split.TRAIN), keys(Split.HELD_OUT)
    assert not train & held_out
    assert all(is_held_out(name) for name in held_out)


def test_a_recall_answer_stands_in_its_prompt() -> None:
    exchange = key_value(Source(random.Random(1)), 1500, single=True)
    assert exchange.messages[-1]["content"] in exchange.system + "".join(m["content"] for m in exchange.messages[:-1])


def test_held_out_tool_requests_are_those_of_the_first_evaluation() -> None:
    cases = short_cases(Source(random.Random(2), Split.HELD_OUT), 10, thinking=False)
    requests = [case.messages[-1]["content"] for label in ("tool-single", "tool-parallel") for case in cases[label]]
    assert zlib.crc32("\n".join(requests).encode()) == 1242300037


def test_references_of_tool_cases_are_well_formed() -> None:
    cases = short_cases(Source(random.Random(2), Split.HELD_OUT), 10, thinking=False)
    for label in ("tool-single", "tool-nested", "tool-parallel"):
        assert all(well_formed(case.reference, case.tools) for case in cases[label])


@pytest.mark.parametrize(
    "reply",
    [
        "Hello",
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>",
        answer_text(assistant("", "", [("get_weather", {"city": "Rome", "days": "three"})])),
        answer_text(assistant("", "", [("get_weather", {"city": "Rome", "extra": 1})])),
        answer_text(assistant("Sure.", "", [("get_weather", {"city": "Rome"})])),
    ],
)
def test_well_formed_refuses(reply: str) -> None:
    assert not well_formed(reply, (WEATHER,))


def test_the_order_of_parameters_is_free_when_replies_are_compared() -> None:
    reference = answer_text(assistant("", "", [("get_weather", {"city": "Rome", "days": 3})]))
    assert same_reply(answer_text(assistant("", "", [("get_weather", {"days": 3, "city": "Rome"})])), reference)
    assert not same_reply(answer_text(assistant("", "", [("get_weather", {"city": "Rome"})])), reference)
    assert same_reply("42", "42")
    assert not same_reply("41", "42")


def test_chunked_rule_and_its_gradients_equal_the_recurrence() -> None:
    torch.manual_seed(0)
    rows, heads, dim = 2, 2, 4
    shape = (rows * 2, heads, pointwise.CHUNK)
    q, v = (torch.randn(*shape, dim, dtype=torch.float64, requires_grad=True) for _ in range(2))
    k = torch.nn.functional.normalize(torch.randn(*shape, dim, dtype=torch.float64), dim=-1).requires_grad_()
    g = (-torch.rand(shape, dtype=torch.float64)).cumsum(-1).requires_grad_()
    beta = torch.rand(shape, dtype=torch.float64).requires_grad_()
    inputs = (q, k, v, g, beta)
    outputs = []
    for chunk in range(rows * 2):
        if chunk % 2 == 0:
            state = torch.zeros(heads, dim, dim, dtype=torch.float64)
        for t in range(pointwise.CHUNK):
            decay = g[chunk, :, t] - (g[chunk, :, t - 1] if t else 0.0)
            state = state * decay.exp()[:, None, None]
            written = beta[chunk, :, t, None] * (v[chunk, :, t] - torch.einsum("hkv,hk->hv", state, k[chunk, :, t]))
            state = state + torch.einsum("hk,hv->hkv", k[chunk, :, t], written)
            outputs.append(torch.einsum("hkv,hk->hv", state, q[chunk, :, t]))
    expected = torch.stack(outputs).view(rows * 2, pointwise.CHUNK, heads, dim).transpose(1, 2)
    result = gated_delta(*inputs, rows)
    weight = torch.randn_like(expected)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad((result * weight).sum(), inputs), torch.autograd.grad((expected * weight).sum(), inputs)
    )


def test_training_model_equals_transformers() -> None:
    torch.manual_seed(0)
    model = TinyModel(SMALL, torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    config = AutoConfig.for_model(**{k: v for k, v in text_config(SMALL).items() if not k.endswith("token_id")})
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = {name: value for name, value in checkpoint(model, torch.float32).items() if not name.startswith("mtp.")}
    loaded = reference.load_state_dict(tensors, strict=False)
    assert loaded.missing_keys == ["lm_head.weight"]
    assert not loaded.unexpected_keys
    tokens = torch.randint(0, SMALL.vocab_size, (2, 128))
    with torch.no_grad():
        rows = Rows(2, 128, SMALL, torch.device("cpu"))
        logits = model.logits(model.hidden(tokens.flatten(), rows)).view(2, 128, -1)
        torch.testing.assert_close(logits, reference(tokens).logits, atol=1e-4, rtol=0.0)


def test_steps_lower_both_losses() -> None:
    torch.manual_seed(0)
    model = TinyModel(SMALL, torch.float32)
    rate = torch.tensor(3e-3)
    trainer = Trainer(model, make_optimizer(model, rate, 0.0), draft_weight=0.25)
    batch = torch.randint(0, SMALL.vocab_size, (2, 64)) + LEARNED
    trainer.step(batch)
    main, draft = trainer.losses.main.item(), trainer.losses.draft.item()
    for _ in range(5):
        trainer.step(batch)
    assert trainer.losses.main.item() < main
    assert trainer.losses.draft.item() < draft


def test_shipped_weights_are_complete_and_small_enough_for_the_wheel() -> None:
    path = ASSETS / "model.safetensors"
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in TinyModel(Shape()).state_dict().items()}
    assert deflated_size(path) < 20_000_000


def test_shipped_configuration_is_the_generated_one() -> None:
    assert json.loads((ASSETS / "config.json").read_text(encoding="utf-8")) == text_config(Shape())
