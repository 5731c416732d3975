"""The chat frontend of the embedded model and settings for tests of the text and HTTP layers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninferd.chat.frontend import ChatFrontend
from ninferd.config.schema import Settings
from ninferd.weights.json_file import read_json_object
from ninferd.weights.locate import artifact_path

ARTIFACT = "embedded:ninfer-tiny"
DIRECTORY = "embedded:ninfer-tiny-bf16"


@dataclass(frozen=True)
class FrontendDirectory:
    """The frontend files of a directory that need not hold weights."""

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        file = self.path / "config.json"
        return read_json_object(file, 1 << 20) if file.exists() else {}

    def resource(self, name: str) -> bytes | None:
        file = self.path / name
        return file.read_bytes() if file.exists() else None


def make_settings(**tables: dict[str, Any]) -> Settings:
    """Defaults for the embedded model with some keys changed: ``make_settings(queue={"max_pending": 1})``."""
    return Settings.from_layers([{"model": {"artifact": ARTIFACT}}, tables])


def tiny_directory() -> Path:
    """The embedded model as a Hugging Face directory, whose files tests copy and change."""
    return artifact_path(DIRECTORY)


def frontend_of(directory: Path, settings: Settings | None = None) -> ChatFrontend:
    return ChatFrontend.load(FrontendDirectory(directory), settings or make_settings())


@functools.cache
def tiny_frontend() -> ChatFrontend:
    return frontend_of(tiny_directory())
