"""Which control-token spellings of a chat template were written by the template itself.

A caller may write ``<|im_start|>`` in a message; only the template may open a turn. The string literals of the
template that end up in its output are therefore rewritten once, at load: each control-token spelling in them gets an
unguessable prefix (the *nonce*). After rendering, a spelling with the nonce is a control token and everything else is
ordinary text, however the template cut, trimmed or joined what the caller gave it. Strings that the template only
*looks for* (``content.split('</think>')``) stay as they are, so its logic sees the same values as everywhere else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator

from jinja2 import nodes

_NONCE_LENGTH = 8
_PRIVATE_USE_START, _PRIVATE_USE_COUNT = 0xF0000, 0xFFFD  # plane 15

# Methods and filters whose arguments are patterns to look for, with the number of leading pattern arguments.
_PATTERN_ARGUMENTS = {
    "split": 1,
    "rsplit": 1,
    "partition": 1,
    "rpartition": 1,
    "startswith": 1,
    "endswith": 1,
    "find": 1,
    "rfind": 1,
    "index": 1,
    "rindex": 1,
    "count": 1,
    "strip": 1,
    "lstrip": 1,
    "rstrip": 1,
    "removeprefix": 1,
    "removesuffix": 1,
    "replace": 1,
    "get": 1,
    "trim": 1,
    "select": 2,
    "reject": 2,
    "selectattr": 3,
    "rejectattr": 3,
}


class ControlTokenMarks:
    """The nonce of one template and the control-token spellings it marks."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = frozenset(spellings)
        self.nonce = "".join(
            chr(_PRIVATE_USE_START + secrets.randbelow(_PRIVATE_USE_COUNT)) for _ in range(_NONCE_LENGTH)
        )
        longest_first = sorted(self.spellings, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._spelling = re.compile(alternatives)
        self._marked = re.compile(f"{self.nonce}({alternatives})?")

    def mark(self, text: str) -> str:
        """Put the nonce before every control-token spelling of a template literal or tokenizer variable."""
        return self._spelling.sub(lambda match: self.nonce + match[0], text)

    def unmark(self, rendered: str) -> str:
        """The text as a reader sees it."""
        return rendered.replace(self.nonce, "")

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Cut into (text, is_control_token) pieces; adjacent ordinary text stays in one piece."""
        ordinary: list[str] = []
        position = 0
        for match in self._marked.finditer(rendered):
            ordinary.append(rendered[position : match.start()])
            position = match.end()
            if match[1] is not None:
                if text := "".join(ordinary):
                    yield text, False
                ordinary.clear()
                yield match[1], True
        ordinary.append(rendered[position:])
        if text := "".join(ordinary):
            yield text, False

    def mark_template(self, tree: nodes.Template) -> None:
        """Mark the output literals of a parsed template in place."""
        for literal in _output_literals(tree):
            if isinstance(literal, nodes.TemplateData):
                literal.data = self.mark(literal.data)
            else:
                literal.value = self.mark(literal.value)


def _output_literals(node: nodes.Node) -> Iterator[nodes.TemplateData | nodes.Const]:
    """String literals that can become output: all but those that are compared, tested or searched for."""
    if isinstance(node, nodes.TemplateData):
        yield node
    elif isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            yield node
    elif isinstance(node, (nodes.Compare, nodes.Test)):
        return
    elif isinstance(node, nodes.Getitem):
        yield from _output_literals(node.node)
    elif isinstance(node, nodes.Pair):
        yield from _output_literals(node.value)
    elif isinstance(node, (nodes.Call, nodes.Filter)):
        yield from _call_literals(node)
    else:
        for child in node.iter_child_nodes():
            yield from _output_literals(child)


def _call_literals(call: nodes.Call | nodes.Filter) -> Iterator[nodes.TemplateData | nodes.Const]:
    if isinstance(call, nodes.Filter):
        name: str = call.name
    else:
        name = call.node.attr if isinstance(call.node, nodes.Getattr) else ""
    patterns = _PATTERN_ARGUMENTS.get(name, 0)
    skipped = {id(argument) for argument in call.args[:patterns]}
    for child in call.iter_child_nodes():
        if id(child) not in skipped:
            yield from _output_literals(child)
