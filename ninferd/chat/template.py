"""Chat templates: Jinja as transformers runs it, sandboxed and bounded."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninferd.chat import json_text
from ninferd.chat.control_tokens import ControlTokenMarks
from ninferd.chat.errors import FrontendError, PromptError

MAX_TEMPLATE_BYTES = 16 << 20
RENDER_TIMEOUT_S = 20.0


class RenderTooLargeError(PromptError):
    """The rendered conversation is longer than any prompt that fits the context."""

    def __init__(self, max_chars: int) -> None:
        super().__init__(f"the rendered conversation is longer than {max_chars} characters")


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks training targets; for inference it is its body."""

    tags = {"generation"}  # noqa: RUF012 (declared without ClassVar by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Raised(jinja2.TemplateError):
    """``raise_exception`` of the template: its author's words for the client."""


def _raise_exception(message: object) -> None:
    raise _Raised(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if ensure_ascii or indent is not None or sort_keys:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return json_text.dumps(value, separators or (", ", ": "))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)  # local time, as transformers does


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template; ``render`` may run in several threads at once."""

    def __init__(self, source: str, marks: ControlTokenMarks, variables: Mapping[str, str]) -> None:
        """``variables``: the tokenizer's special tokens by name (``bos_token`` ...).

        Raises FrontendError when the source is not a usable template.
        """
        size = len(source.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= MAX_TEMPLATE_BYTES:
            raise FrontendError(f"the chat template has {size} bytes; 1 to {MAX_TEMPLATE_BYTES} are possible")
        environment = _environment()
        try:
            tree = environment.parse(source)
            marks.mark_template(tree)
            code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise FrontendError(f"chat template, line {error.lineno}: {error.message}") from error
        except RecursionError:
            raise FrontendError("the chat template nests too deeply") from None
        self.marks = marks
        self.variables = frozenset(variables)
        self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        self._constants = {name: marks.mark(value) for name, value in variables.items()}

    def render(self, variables: Mapping[str, Any], *, max_chars: int) -> str:
        """Render with control tokens marked (see ControlTokenMarks).

        Raises PromptError with the template's own words when it refuses the conversation or fails on it, and
        RenderTooLargeError beyond ``max_chars``.
        """
        deadline = time.monotonic() + RENDER_TIMEOUT_S
        parts: list[str] = []
        chars = 0
        try:
            for part in self._template.generate({**self._constants, **variables}):
                parts.append(part)
                chars += len(part)
                if chars > max_chars:
                    raise RenderTooLargeError(max_chars)
                if time.monotonic() > deadline:
                    raise PromptError(f"rendering the chat template took more than {RENDER_TIMEOUT_S:g} s")
        except _Raised as error:
            raise PromptError(f"the chat template refused the conversation: {error}") from error
        except PromptError:
            raise
        except RecursionError:
            raise PromptError("the conversation nests too deeply for the chat template") from None
        except Exception as error:  # whatever the template's code does with values it did not expect
            raise PromptError(f"the chat template failed on the conversation: {error}") from error
        return "".join(parts)
