"""Line numbers of TOML keys, which tomllib does not keep.

Works on text that tomllib has accepted, so it only has to find where keys and values begin and end.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

KeyPath = tuple[str | int, ...]
"""Keys from the root; integers are positions in arrays."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR_END = re.compile(r"[,\]}#\n]")
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_INLINE_BLANK = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Line (from 1) of every table, key and array item of a valid TOML document.

    A table that several lines contribute to has the first of them. May raise RecursionError on absurd nesting.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._line = 1
        self._line_pos = 0  # position up to which newlines are counted
        self._lines: dict[KeyPath, int] = {}
        self._array_tables: dict[KeyPath, int] = {}  # path of [[name]] -> position of its last item

    def scan(self) -> Mapping[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._take("[["):
                table = self._array_table(self._key())
                self._take("]]")
            elif self._take("["):
                table = self._record((), self._key())
                self._take("]")
            else:
                self._pair(table)
        return self._lines

    def _array_table(self, key: tuple[str, ...]) -> KeyPath:
        path = (*self._record((), key[:-1]), key[-1])
        self._lines.setdefault(path, self._current_line())
        self._array_tables[path] = self._array_tables.get(path, -1) + 1
        item = (*path, self._array_tables[path])
        self._lines[item] = self._current_line()
        return item

    def _record(self, table: KeyPath, key: tuple[str, ...]) -> KeyPath:
        """Note the line of ``key`` below ``table`` and of the tables it implies; returns its full path."""
        path = table
        for part in key:
            path = (*path, part)
            self._lines.setdefault(path, self._current_line())
            if path in self._array_tables:
                path = (*path, self._array_tables[path])
        return path

    def _pair(self, table: KeyPath) -> None:
        path = self._record(table, self._key())
        self._skip_inline()
        self._take("=")
        self._skip_inline()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._take("["):
            position = 0
            while self._skip_blank() and not self._take("]"):
                self._lines[(*path, position)] = self._current_line()
                self._value((*path, position))
                position += 1
                self._skip_comma()
        elif self._take("{"):
            while self._skip_blank() and not self._take("}"):
                self._pair(path)
                self._skip_comma()
        elif string := _STRING.match(self._text, self._pos):
            self._pos = string.end()
        else:
            end = _SCALAR_END.search(self._text, self._pos)
            self._pos = end.start() if end else len(self._text)

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip_inline()
            parts.append(self._key_part())
            self._skip_inline()
            if not self._take("."):
                return tuple(parts)

    def _key_part(self) -> str:
        match = _BARE_KEY.match(self._text, self._pos) or _STRING.match(self._text, self._pos)
        assert match is not None, "tomllib accepted this text"
        self._pos = match.end()
        source = match.group()
        return str(tomllib.loads(f"k = {source}")["k"]) if source[0] in "\"'" else source

    def _skip_blank(self) -> bool:
        """Skip white space, newlines and comments; whether anything is left."""
        if blank := _BLANK.match(self._text, self._pos):
            self._pos = blank.end()
        return self._pos < len(self._text)

    def _skip_inline(self) -> None:
        blank = _INLINE_BLANK.match(self._text, self._pos)
        self._pos = blank.end() if blank else self._pos

    def _skip_comma(self) -> None:
        self._skip_blank()
        self._take(",")

    def _take(self, token: str) -> bool:
        found = self._text.startswith(token, self._pos)
        if found:
            self._pos += len(token)
        return found

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._line_pos, self._pos)
        self._line_pos = self._pos
        return self._line
