"""From a path to a model that may be loaded. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ninferd.errors import InputError
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.locate import artifact_path
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.geometry import TextGeometry
from ninferd.weights.parameters.huggingface_config import text_component
from ninferd.weights.profiles import describe, require_profile
from ninferd.weights.source import ModelSource
from ninferd.weights.verify.checksums import LIST_NAME, Expected, check_files, expected_files

if TYPE_CHECKING:  # models are also opened where pydantic is not installed
    from ninferd.config.groups.model import ModelSettings


def open_model(path: Path) -> ModelSource:
    """The model in a Hugging Face directory or a ``.ninfer`` file; reads no weight.

    Raises InputError naming the file and what is wrong with it.
    """
    return HuggingFaceSource.open(path) if path.is_dir() else ArtifactSource.open(path)


def prepare_source(model: ModelSettings, on_hashed: Callable[[int, int], None]) -> ModelSource:
    """The configured model, checked as far as the configuration asks for it before a weight is used.

    With ``model.sha256`` or ``model.verify_hash`` its files are read once; ``on_hashed`` gets (bytes done, bytes in
    all). Raises InputError for a model that cannot be opened, is not stored as ``model.weights_profile`` asserts or has
    another SHA-256 than expected.
    """
    source = open_model(artifact_path(model.artifact))
    require_configured_profile(model, source)
    if expected := configured_digests(model, source.path):
        check_files(expected, on_hashed)
    return source


def configured_digests(model: ModelSettings, path: Path) -> tuple[Expected, ...]:
    """What the files of the model must hash to; empty if nothing is to be compared.

    InputError with ``model.verify_hash`` if nothing says what they must hash to, and if a part of them is in no list.
    """
    if model.sha256 is None and not model.verify_hash:
        return ()
    expected = expected_files(path, model.sha256)
    if not expected:
        ways = (
            f"list its files in {path / LIST_NAME}"
            if path.is_dir()
            else f"set model.sha256, or put {path.name}.sha256 or {LIST_NAME} beside it"
        )
        raise InputError(f"model.verify_hash: nothing says which SHA-256 {path} must have: {ways}")
    return expected


def require_configured_profile(model: ModelSettings, source: ModelSource) -> None:
    """InputError listing the differences if the weights are not stored as ``model.weights_profile`` asserts."""
    if model.weights_profile != "auto":
        description = describe(source, text_plan(text_geometry_of(source)))
        require_profile(description, model.weights_profile, str(source.path))


def text_geometry_of(source: ModelSource) -> TextGeometry:
    """Sizes of the text model. Raises InputError naming file and key if the configuration cannot be used."""
    where = str(source.path / "config.json") if source.path.is_dir() else str(source.path)
    return model_geometry({"text": text_component(source.config, where)}, where).text
