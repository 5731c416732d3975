"""Stop strings and whitespace at the edges of a channel, on streamed text."""

from __future__ import annotations

from collections.abc import Sequence

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024


def partial_suffix(text: str, patterns: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of a pattern."""
    longest = 0
    for pattern in patterns:
        start = max(len(text) - len(pattern) + 1, 0)
        while (start := text.find(pattern[0], start)) >= 0:
            if pattern.startswith(text[start:]):
                longest = max(longest, len(text) - start)
                break
            start += 1
    return longest


class StopMatcher:
    """Cuts the text before the stop string that completes first; how the text is cut into pieces does not matter."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that can be shown; a suffix that may become a stop string is held back."""
        if self.matched or not self._stops:
            return "" if self.matched else text
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.matched = True
            self._held = ""
            return text[: min(found)[1]]
        visible = len(text) - partial_suffix(text, self._stops)
        self._held = text[visible:]
        return text[:visible]

    def flush(self) -> str:
        """End of the channel: the held suffix was no stop string."""
        held, self._held = self._held, ""
        return held


class LeadingTrim:
    """Drops leading characters of a channel: those given, or any whitespace for None."""

    def __init__(self, chars: str | None) -> None:
        self._chars = chars
        self._started = False

    def push(self, text: str) -> str:
        if not self._started:
            text = text.lstrip(self._chars)
            self._started = bool(text)
        return text


class TrailingTrim:
    """Holds trailing whitespace back until more text follows; at the end it is simply not asked for."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        text = self._held + text
        visible = text.rstrip()
        self._held = text[len(visible) :]
        return visible
