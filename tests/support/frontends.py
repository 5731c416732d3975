"""The chat frontend of the embedded model and settings for tests of the text and HTTP layers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ninferd.chat.frontend import ChatFrontend
from ninferd.config.schema import Settings
from ninferd.weights.locate import artifact_directory

ARTIFACT = "embedded:ninfer-tiny"


def make_settings(**tables: dict[str, Any]) -> Settings:
    """Defaults for the embedded model with some keys changed: ``make_settings(queue={"max_pending": 1})``."""
    return Settings.from_layers([{"model": {"artifact": ARTIFACT}}, tables])


def tiny_directory() -> Path:
    return artifact_directory(ARTIFACT)


@functools.cache
def tiny_frontend() -> ChatFrontend:
    return ChatFrontend.load(tiny_directory(), make_settings())
