"""Text for a terminal or a log that has one message in a line."""

from __future__ import annotations


def escaped(line: str) -> str:
    """Names of files and what is in them must neither break a line nor drive the terminal."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
