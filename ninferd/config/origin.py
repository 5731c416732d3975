"""Where a value comes from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ninferd.errors import InputError

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
class Problem:
    """One reason why a configuration is refused."""

    where: str  # FILE:LINE, variable or "command line"
    key: str | None
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.reason) if part)


class ConfigError(InputError):
    """A configuration that cannot be used; the message has one line per problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
