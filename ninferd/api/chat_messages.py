"""Messages of a chat request: their shape, and their meaning as a conversation (serving §2.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from ninferd.api.compat import Leniency
from ninferd.api.errors import ApiError, bad_request
from ninferd.chat.conversation import Message, PastToolCall

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MEDIA_PARTS = {"image_url": ("user", "tool"), "video_url": ("user",)}


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class PartFields(_Shape):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    video_url: Any = None
    prompt_cache_breakpoint: Any = None


class FunctionFields(_Shape):
    name: str
    arguments: str


class ToolCallFields(_Shape):
    id: str
    type: str
    function: FunctionFields | None = None


class MessageFields(_Shape):
    role: str
    content: str | list[PartFields] | None = None
    name: str | None = None
    tool_calls: list[ToolCallFields] | None = None
    function_call: FunctionFields | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None


def to_messages(received: Sequence[MessageFields], leniency: Leniency) -> tuple[Message, ...]:
    """Validated messages in the chat layer's terms; raises ApiError naming the message."""
    return tuple(_Reader(message, f"messages[{index}]", leniency).read() for index, message in enumerate(received))


class _Reader:
    """Checks one message; errors carry ``messages`` as param and the exact place in their text."""

    def __init__(self, message: MessageFields, place: str, leniency: Leniency) -> None:
        self.message = message
        self.place = place
        self.leniency = leniency

    def read(self) -> Message:
        message = self.message
        role = _ROLES.get(message.role)
        if role is None:
            raise self._error(f"role {message.role!r} is not one of {', '.join(_ROLES)}", "unsupported_role", ".role")
        self._check_members(role)
        content = self._content()
        if role == "assistant":
            return Message("assistant", content or message.refusal or "", self._reasoning(), tuple(self._calls()))
        if role == "tool":
            if message.content is None:
                raise self._error("a tool result needs content", None, ".content")
            return Message("tool", content, tool_call_id=message.tool_call_id)
        if message.content is None:
            raise self._error(f"a {message.role} message needs content", None, ".content")
        return Message("user" if role == "user" else "system", content)

    def _check_members(self, role: str) -> None:
        message = self.message
        if message.name and role != "tool" and not self.leniency.ignore("messages.name"):
            raise self._error("a name is not supported here", "message_name_not_supported", ".name")
        if role != "assistant":
            if message.reasoning_content or message.reasoning:
                raise self._error("only assistant messages have reasoning", None, ".reasoning_content")
            if message.tool_calls or message.function_call:
                raise self._error("only assistant messages have tool calls", None, ".tool_calls")
        elif message.audio is not None:
            raise self._error("audio history is not supported", "assistant_history_not_supported", ".audio")
        if role != "tool" and message.tool_call_id:
            raise self._error("only tool messages have a tool_call_id", None, ".tool_call_id")
        if message.role == "tool" and message.tool_call_id is None:
            raise self._error("a tool message needs the tool_call_id that it answers", None, ".tool_call_id")
        if message.role == "function" and not message.name:
            raise self._error("a function message needs a name", None, ".name")

    def _content(self) -> str:
        content = self.message.content
        if content is None or isinstance(content, str):
            return content or ""
        return "".join(self._part(part, f".content[{index}]") for index, part in enumerate(content))

    def _part(self, part: PartFields, place: str) -> str:
        if part.prompt_cache_breakpoint not in (None, {"mode": "explicit"}):
            raise self._error('prompt_cache_breakpoint must be {"mode": "explicit"}', "invalid_cache_breakpoint", place)
        if part.type == "text":
            return self._required(part.text, place + ".text")
        if part.type == "refusal" and self.message.role == "assistant":
            return self._required(part.refusal, place + ".refusal")
        if _ROLES[self.message.role] in _MEDIA_PARTS.get(part.type, ()):
            raise self._media_error(part, place)
        raise self._error(
            f"content of type {part.type!r} is not supported in a {self.message.role} message",
            "modality_not_supported",
            place + ".type",
        )

    def _required(self, value: str | None, place: str) -> str:
        if value is None:
            raise self._error("a string is needed", None, place)
        return value

    def _media_error(self, part: PartFields, place: str) -> ApiError:
        """What is wrong with a media part; a sound one is refused too, because this model has no vision."""
        value = part.image_url if part.type == "image_url" else part.video_url
        place += f".{part.type}"
        url = value.get("url") if isinstance(value, dict) else value
        if not isinstance(url, str) or not url.startswith(("http://", "https://", "data:")):
            return self._error("an http(s) or data URL is needed", None, place + ".url")
        detail = value.get("detail") if isinstance(value, dict) else None
        if detail not in (None, "auto", "low", "high"):
            return self._error("detail must be auto, low or high", None, place + ".detail")
        if detail in ("low", "high") and not self.leniency.ignore("messages.content.image_url.detail"):
            return self._error("only detail auto is supported", "image_detail_not_supported", place + ".detail")
        return self._error("vision is off, so media cannot be read", "vision_disabled", place)

    def _reasoning(self) -> str:
        first, second = self.message.reasoning_content or "", self.message.reasoning or ""
        if first and second and first != second:
            raise self._error(
                "reasoning and reasoning_content differ", "conflicting_template_option", ".reasoning_content"
            )
        return first or second

    def _calls(self) -> Iterator[PastToolCall]:
        for index, call in enumerate(self.message.tool_calls or ()):
            place = f".tool_calls[{index}]"
            if call.type != "function":
                raise self._error(
                    f"calls of type {call.type!r} are not supported", "tool_type_not_supported", place + ".type"
                )
            if call.function is None:
                raise self._error("a function call needs its function", None, place + ".function")
            yield PastToolCall(call.id, call.function.name, call.function.arguments)
        legacy = self.message.function_call
        if legacy is not None:
            yield PastToolCall("", legacy.name, legacy.arguments)

    def _error(self, reason: str, code: str | None, place: str) -> ApiError:
        return bad_request(f"{self.place}{place}: {reason}", "messages", code)
