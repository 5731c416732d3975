"""Key lines against documents whose lines are known by construction."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ninferd.config.toml_lines import KeyPath, key_lines

# What may stand inside strings and comments and looks like structure.
_NOISE = st.sampled_from(["", "#", "[x]", "[[x]]", "a = 1", "{", "}", ",", "=", "é", "'", " ", "]", "\t"])


class _Writer:
    """Writes a document and notes the line of everything it writes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.text = ""
        self.lines: dict[KeyPath, int] = {}
        self._names = (f"k{number}" for number in range(10_000))
        self._table: KeyPath = ()
        self._item_counts: dict[str, int] = {}

    @property
    def _line(self) -> int:
        return self.text.count("\n") + 1

    def _note(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self._line)

    def statement(self) -> None:
        kind = self._draw(st.sampled_from(["blank", "comment", "table", "array table", "pair", "pair", "pair"]))
        if kind == "blank":
            self.text += self._draw(st.sampled_from(["\n", "  \t\n", "\r\n"]))
        elif kind == "comment":
            self.text += f"#{self._draw(_NOISE)}\n"
        elif kind == "table":
            self.text += "["
            self._table = self._key(())
            self.text += "]" + self._end()
        elif kind == "array table":
            self._array_table()
        else:
            self._pair(self._table)
            self.text += self._end()

    def _array_table(self) -> None:
        name = self._draw(st.sampled_from(["array_a", "array_b"]))
        position = self._item_counts.get(name, 0)
        self._item_counts[name] = position + 1
        self._table = (name, position)
        self._note((name,))
        self._note(self._table)
        self.text += f"[[ {name} ]]" + self._end()

    def _end(self) -> str:
        return self._draw(st.sampled_from(["\n", "\r\n", " # a = [ '\"\n", "\t\n"]))

    def _key(self, table: KeyPath) -> KeyPath:
        """A key of one to three fresh parts below ``table``."""
        path = table
        for position in range(self._draw(st.integers(1, 3))):
            name = next(self._names)
            style = self._draw(st.sampled_from(["bare", "basic", "literal", "spaced"]))
            if style == "basic":
                name += " . é"
                source = f'"{name}"'.replace("é", "\\u00e9")
            elif style == "literal":
                name += ' #"='
                source = f"'{name}'"
            else:
                source = name
            self.text += ("" if position == 0 else " . " if style == "spaced" else ".") + source
            path = (*path, name)
            self._note(path)
        return path

    def _pair(self, table: KeyPath) -> None:
        path = self._key(table)
        self.text += self._draw(st.sampled_from(["=", " = ", "\t=\t"]))
        self._value(path, depth=0)

    def _value(self, path: KeyPath, depth: int) -> None:
        scalars = ["number", "date", "basic", "literal", "multi basic", "multi literal"]
        kind = self._draw(st.sampled_from(scalars if depth == 2 else [*scalars, "array", "table"]))
        noise = self._draw(_NOISE)
        if kind == "array":
            self._array(path, depth)
        elif kind == "table":
            self._inline_table(path)
        elif kind == "multi literal":
            self.text += f"'''{noise}\n\"\"\"\n{noise}'''" if noise != "'" else "'''''a'''''"
        elif kind == "multi basic":
            self.text += f'"""\n{noise}\\"""\n{noise}\\\\""' + self._draw(st.sampled_from(['"', '""', '"""']))
        else:
            plain = {"number": "-1_0.5e3", "date": "1979-05-27 07:32:00", "basic": f'"{noise}\\"\\\\"'}
            self.text += plain.get(kind, "'" + noise.replace("'", "") + "\"\\'")

    def _array(self, path: KeyPath, depth: int) -> None:
        self.text += "["
        count = self._draw(st.integers(0, 3))
        for position in range(count):
            self.text += self._draw(st.sampled_from(["", "\n", " # ] \n", "\r\n\n  "]))
            self._note((*path, position))
            self._value((*path, position), depth + 1)
            self.text += self._draw(st.sampled_from(["", "\n"])) + ("," if position < count - 1 else "")
        self.text += self._draw(st.sampled_from(["]", ",\n]", "#[\n]"])) if count else "]"

    def _inline_table(self, path: KeyPath) -> None:
        self.text += "{ "
        count = self._draw(st.integers(0, 2))
        for position in range(count):
            name = next(self._names)
            self._note((*path, name))
            self.text += f"{name} = "
            self._value((*path, name), depth=2)
            self.text += ", " if position < count - 1 else " "
        self.text += "}"


@st.composite
def _documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    writer = _Writer(draw)
    for _ in range(draw(st.integers(0, 12))):
        writer.statement()
    return writer.text, writer.lines


def _paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for name, child in children:
        yield (*path, name)
        yield from _paths(child, (*path, name))


@given(_documents())
def test_every_key_has_the_line_it_was_written_on(document: tuple[str, dict[KeyPath, int]]) -> None:
    text, lines = document
    assert set(lines) == set(_paths(tomllib.loads(text)))  # the writer wrote what it believes
    assert key_lines(text) == lines


def test_a_readable_document() -> None:
    text = '''\
# heading
a.b = 1
"quoted key" = "# not [a comment]"

[t]
list = [
  1,        # one
  2,
]
long = """
[not.a.table]
x = 1
"""
after = { inner = [ 'x' ], other = 2 }
[t.sub] # comment
'''
    assert key_lines(text) == {
        ("a",): 2,
        ("a", "b"): 2,
        ("quoted key",): 3,
        ("t",): 5,
        ("t", "list"): 6,
        ("t", "list", 0): 7,
        ("t", "list", 1): 8,
        ("t", "long"): 10,
        ("t", "after"): 14,
        ("t", "after", "inner"): 14,
        ("t", "after", "inner", 0): 14,
        ("t", "after", "other"): 14,
        ("t", "sub"): 15,
    }


def test_items_of_table_arrays_and_their_sub_tables() -> None:
    text = "[[a]]\nx = 1\n[[a]]\nx = 2\n[a.b]\ny = 3\n[[a.c]]\nz = 1\n[[a.c]]\n"
    assert key_lines(text) == {
        ("a",): 1,
        ("a", 0): 1,
        ("a", 0, "x"): 2,
        ("a", 1): 3,
        ("a", 1, "x"): 4,
        ("a", 1, "b"): 5,
        ("a", 1, "b", "y"): 6,
        ("a", 1, "c"): 7,
        ("a", 1, "c", 0): 7,
        ("a", 1, "c", 0, "z"): 8,
        ("a", 1, "c", 1): 9,
    }
