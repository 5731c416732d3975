"""Where a value comes from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ninferd.config.toml_lines import KeyPath
from ninferd.errors import InputError, one_line

LayerName = Literal["default", "base", "profile", "conf.d", "environment", "command line"]


@dataclass(frozen=True)
class Origin:
    """Place of a value: ``file`` is a path, or the name of the variable or flag family where there is none."""

    layer: LayerName
    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Layer:
    """Values of one source and where each of them stands."""

    tree: Mapping[str, Any] = field(repr=False)  # raw values, secrets included
    origins: Mapping[KeyPath, Origin]
    fallback: Origin  # of what has no place of its own

    def origin(self, path: KeyPath) -> Origin | None:
        """Of the value at ``path``, or None if this layer does not set it."""
        return self.origins.get(path)

    def nearest_origin(self, path: KeyPath) -> Origin:
        """Of the value at ``path`` or of the innermost table or array around it."""
        for length in range(len(path), 0, -1):
            if origin := self.origins.get(path[:length]):
                return origin
        return self.fallback


@dataclass(frozen=True)
class Problem:
    """One reason why a configuration is refused."""

    where: str  # FILE:LINE, variable or "command line"
    key: str | None
    reason: str

    def __str__(self) -> str:
        return one_line(": ".join(part for part in (self.where, self.key, self.reason) if part))


class ConfigError(InputError):
    """A configuration that cannot be used; the message has one line per problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def lines(self) -> tuple[str, ...]:
        """What an operator is shown: ``config error: FILE:LINE: group.key: reason`` per problem."""
        return tuple(f"config error: {problem}" for problem in self.problems)
