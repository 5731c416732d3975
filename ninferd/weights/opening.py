"""From a path to a model that may be loaded. Free of torch."""

from __future__ import annotations

from pathlib import Path

from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.source import ModelSource


def open_model(path: Path) -> ModelSource:
    """The model in a Hugging Face directory or a ``.ninfer`` file; reads no weight.

    Raises InputError naming the file and what is wrong with it.
    """
    return HuggingFaceSource.open(path) if path.is_dir() else ArtifactSource.open(path)
