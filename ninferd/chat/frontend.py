"""The text side of one loaded model: tokenizer, chat template, generation defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ninferd.config.schema import Settings


@dataclass(frozen=True)
class ChatFrontend:
    directory: Path

    @classmethod
    def load(cls, directory: Path, settings: Settings) -> ChatFrontend:
        """Read everything that turns messages into tokens and back from a model directory."""
        raise NotImplementedError
