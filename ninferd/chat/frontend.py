"""The text side of one loaded model: tokenizer, chat template, stop tokens, generation defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninferd.chat import json_text
from ninferd.chat.control_tokens import ControlTokenMarks
from ninferd.chat.conversation import Conversation, Message, PastToolCall
from ninferd.chat.errors import ContextLengthError, FrontendError, PromptError
from ninferd.chat.options import check_kwargs, resolve_options
from ninferd.chat.reasoning import ThinkTokens
from ninferd.chat.sampling import SamplerFields, SamplingPresets, merge_sampling, presets_of
from ninferd.chat.template import MAX_TEMPLATE_BYTES, ChatTemplate, RenderTooLargeError
from ninferd.chat.tokenizer import ChatTokenizer
from ninferd.chat.tool_calls import CALL_OPEN, FUNCTION_OPEN
from ninferd.chat.tool_values import ToolContract, contracts_of
from ninferd.config.schema import Settings
from ninferd.engine.messages import PromptIdentity, SamplingParams
from ninferd.weights.identity import model_identity
from ninferd.weights.json_file import read_bounded
from ninferd.weights.resources import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    FrontendFiles,
    json_resource,
    place,
    text_resource,
)

_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class PreparedPrompt:
    """A conversation as tokens, with what is needed to read the answer."""

    identity: PromptIdentity
    enable_thinking: bool  # the resolved option; chooses the sampling preset
    starts_in_reasoning: bool
    shows_special_tokens: bool
    tools: dict[str, ToolContract]
    seed_text: str  # a tool-call opener that ends the prompt, or ""

    def __len__(self) -> int:
        return len(self.identity)


class ChatFrontend:
    """Immutable after load; its methods may run in several threads at once."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        stop_token_ids: tuple[int, ...],
        presets: SamplingPresets,
        model_identity: str,
    ) -> None:
        self.model_identity = model_identity  # of what its prompts are made for
        self.tokenizer = tokenizer
        self.template = template
        self.stop_token_ids = stop_token_ids
        self.think_tokens = ThinkTokens.of(tokenizer)
        self._presets = presets

    @classmethod
    def load(cls, files: FrontendFiles, settings: Settings) -> ChatFrontend:
        """Read the tokenizer, the template and the generation defaults of a model, and try them once.

        Raises InputError naming the file and what is wrong with it.
        """
        identity = model_identity(files.path, files)
        tokenizer = ChatTokenizer.load(files)
        tokenizer_config = json_resource(files, TOKENIZER_CONFIG) or {}
        generation_config = json_resource(files, GENERATION_CONFIG) or {}
        marks = ControlTokenMarks(tokenizer.control_spellings)
        source, origin = _template_source(files, tokenizer_config, settings)
        try:
            template = ChatTemplate(source, marks, _special_tokens(tokenizer_config))
        except FrontendError as error:
            raise FrontendError(f"{origin}: {error}") from error
        stop_token_ids = _stop_token_ids(files, generation_config, tokenizer.token_count)
        presets = presets_of(files.config, generation_config)
        frontend = cls(tokenizer, template, stop_token_ids, presets, identity)
        frontend._probe(settings, origin)
        return frontend

    def prepare(self, conversation: Conversation, settings: Settings, *, max_context: int) -> PreparedPrompt:
        """Render and tokenise; CPU-heavy, call it outside the event loop.

        Raises PromptError, TemplateOptionConflictError or ContextLengthError.
        """
        options = resolve_options(conversation, settings, self.template.variables)
        rendered = self._render(conversation, dict(options.variables), max_context)
        seed_text = ""
        if conversation.forced_call is not None:
            seed_text = _call_opener(conversation.forced_call)
            rendered += self.template.marks.mark(CALL_OPEN) + seed_text.removeprefix(CALL_OPEN)
        token_ids = self.tokenizer.encode_rendered(rendered, self.template.marks)
        if len(token_ids) > max_context:
            raise ContextLengthError(len(token_ids), max_context)
        if not token_ids:
            raise PromptError("the chat template rendered nothing")
        return PreparedPrompt(
            identity=PromptIdentity.from_token_ids(token_ids),
            enable_thinking=options.enable_thinking,
            starts_in_reasoning=self.think_tokens.is_open_after(token_ids),
            shows_special_tokens=conversation.keeps_special_text,
            tools=contracts_of(
                tool for tool in conversation.tools if tool["function"]["name"] in conversation.callable_tools
            ),
            seed_text=seed_text,
        )

    def sampling(
        self,
        settings: Settings,
        asked: SamplerFields,
        *,
        thinking: bool,
        seed: int | None,
        top_logprobs: int | None = None,
    ) -> SamplingParams:
        """Merge preset, server overrides and the request's fields; raises SamplingError."""
        return merge_sampling(self._presets, settings, asked, thinking=thinking, seed=seed, top_logprobs=top_logprobs)

    def _render(self, conversation: Conversation, variables: dict[str, Any], max_context: int) -> str:
        variables["messages"] = [_template_message(message) for message in conversation.messages]
        variables["add_generation_prompt"] = True
        if conversation.tools:
            variables["tools"] = list(conversation.tools)
        # A text with more characters than this cannot fit, however it is cut into tokens: each token stands for at most
        # ``longest_token_bytes`` normalised bytes, composition (NFC) at most halves characters per byte, and a control
        # token carries its nonce.
        chars_per_token = 2 * self.tokenizer.longest_token_bytes + len(self.template.marks.nonce)
        try:
            return self.template.render(variables, max_chars=max_context * chars_per_token)
        except RenderTooLargeError:
            raise ContextLengthError(None, max_context) from None

    def _probe(self, settings: Settings, origin: str) -> None:
        """Render a harmless conversation and compare with tokenising its visible text whole."""
        conversation = Conversation(messages=(Message("user", "Hello"),))
        try:
            check_kwargs(settings.template.kwargs, self.template.variables)
        except PromptError as error:
            raise FrontendError(f"template.kwargs: {error}") from error
        options = resolve_options(conversation, settings, self.template.variables)
        try:
            rendered = self._render(conversation, dict(options.variables), max_context=1 << 20)
        except PromptError as error:
            raise FrontendError(f"{origin}: a one-message conversation does not render: {error}") from error
        marks = self.template.marks
        whole = self.tokenizer.encode_rendered(marks.mark(marks.unmark(rendered)), marks)
        if self.tokenizer.encode_rendered(rendered, marks) != whole:
            raise FrontendError(
                f"{origin}: the template builds control tokens out of pieces, so they cannot be told from message text"
            )


def _template_message(message: Message) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _argument_object(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _argument_object(call: PastToolCall) -> dict[str, Any]:
    """Arguments of a past call in member order; empty text is ``{}``."""
    if not call.arguments.strip():
        return {}
    try:
        arguments = json_text.loads(call.arguments)
    except ValueError as error:
        raise PromptError(f"arguments of the past call to {call.name!r} are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise PromptError(f"arguments of the past call to {call.name!r} are not a JSON object")
    return arguments


def _template_source(files: FrontendFiles, tokenizer_config: dict[str, Any], settings: Settings) -> tuple[str, str]:
    """(source, where it came from): the configured file, else ``chat_template.jinja``, else tokenizer_config's."""
    if settings.template.file is not None:
        path = Path(settings.template.file)
        try:
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode(), str(path)
        except UnicodeDecodeError as error:
            raise FrontendError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error
    own = text_resource(files, CHAT_TEMPLATE)
    if own is not None:
        return own, place(files, CHAT_TEMPLATE)
    stored = tokenizer_config.get("chat_template")
    if isinstance(stored, str):
        return stored, f"{place(files, TOKENIZER_CONFIG)}: chat_template"
    raise FrontendError(f"{place(files, CHAT_TEMPLATE)}: is missing; add one, or set template.file")


def _special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Special tokens by name, as transformers hands them to templates."""
    found: dict[str, str] = {}
    for name in _SPECIAL_TOKEN_NAMES:
        value = tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _stop_token_ids(files: FrontendFiles, generation_config: dict[str, Any], token_count: int) -> tuple[int, ...]:
    """Ids that end an answer: generation_config's, else the config's."""
    nested = files.config.get("text_config")
    where = place(files, GENERATION_CONFIG)
    for source in (generation_config, files.config, nested if isinstance(nested, dict) else {}):
        value = source.get("eos_token_id")
        ids: list[Any] = value if isinstance(value, list) else [value]
        if not ids or any(type(token_id) is not int for token_id in ids):
            continue
        for token_id in ids:
            if not 0 <= token_id < token_count:
                raise FrontendError(
                    f"{where}: eos_token_id {token_id} is no token; the tokenizer has ids 0 to {token_count - 1}"
                )
        return tuple(ids)
    raise FrontendError(f"{where}: neither it nor the model's configuration names an eos_token_id")


def _call_opener(name: str) -> str:
    """What a call of ``name`` begins with; of any tool if empty.

    Ends where a token ends in every well-formed call, so without the ``=`` before a name yet to come: ``=get`` is one
    token in vocabularies of the family, and a model does not go on well from half of one.
    """
    return f"{CALL_OPEN}\n" + (f"{FUNCTION_OPEN}{name}>\n" if name else FUNCTION_OPEN.removesuffix("="))
