"""Renders conversations exactly as ``chat_template.jinja`` does, and marks the text that the model has to learn."""

import json
from dataclasses import dataclass
from typing import Any

from tools.train_tiny.data.base import Message, Tool

TOOLS_OPENING = "<|im_start|>system\n# Tools\n\n<tools>"
TOOLS_CLOSING = (
    "\n</tools>\n\nTo call a tool, write:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>"
)


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text; ``turn`` is the index of the trained assistant message, or -1 for given text."""

    text: str
    turn: int = -1


@dataclass(frozen=True)
class Conversation:
    """What the template receives; ``families`` gives the evaluation row of each assistant turn, in order."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    families: tuple[str, ...] = ()
    thinking: bool = False
    preserve: bool = False


def _header(conversation: Conversation) -> str:
    first = conversation.messages[0]
    system = first["content"].strip() if first["role"] == "system" else ""
    if conversation.tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
        return TOOLS_OPENING + listed + TOOLS_CLOSING + (f"\n\n{system}" if system else "") + "<|im_end|>\n"
    return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def render_calls(message: Message) -> str:
    """Returns the XML of the message's tool calls, without leading newlines."""
    blocks = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parameters = "".join(
            f"<parameter={key}>\n{_value_text(value)}\n</parameter>\n" for key, value in function["arguments"].items()
        )
        blocks.append(f"<tool_call>\n<function={function['name']}>\n{parameters}</function>\n</tool_call>")
    return "\n".join(blocks)


def answer_text(message: Message) -> str:
    """Returns what follows the reasoning block: content, then calls."""
    content, calls = message["content"].strip(), render_calls(message)
    return f"{content}\n\n{calls}" if content and calls else content + calls


def segments(conversation: Conversation) -> list[Segment]:
    """Returns the rendering in pieces; their concatenation equals the template's output without generation prompt.

    Given text is merged, so that tokenising each piece by itself equals tokenising the prompt and the reply.
    """
    messages = conversation.messages
    last_query = max(index for index, message in enumerate(messages) if message["role"] == "user")
    pieces: list[Segment] = []
    given = _header(conversation)
    turn = -1
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            given += f"<|im_start|>user\n{message['content'].strip()}<|im_end|>\n"
        elif role == "tool":
            opening = "" if messages[index - 1]["role"] == "tool" else "<|im_start|>user"
            last = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
            given += (
                f"{opening}\n<tool_response>\n{message['content'].strip()}\n</tool_response>" + "<|im_end|>\n" * last
            )
        elif role == "assistant":
            turn += 1
            given += "<|im_start|>assistant\n"
            learned = answer_text(message)
            if index > last_query or conversation.preserve:
                reasoning = message["reasoning_content"].strip() if conversation.thinking else ""
                given += "<think>\n" if reasoning else "<think>\n\n</think>\n\n"
                learned = f"{reasoning}\n</think>\n\n{learned}" if reasoning else learned
            pieces += [Segment(given), Segment(learned + "<|im_end|>", turn)]
            given = "\n"
    return [*pieces, Segment(given)]
