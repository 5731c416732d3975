"""What is asked for: which source becomes which artifact, and the sources opened for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.convert.choices import Choices
from ninferd.weights.convert.draft_head import read_counts, select_tokens
from ninferd.weights.convert.frontend import collect_frontend
from ninferd.weights.convert.inventory import Inventory, take_inventory
from ninferd.weights.convert.recipes import find_recipe
from ninferd.weights.convert.sources import Runs, Sources
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.registry import parameters
from ninferd.weights.source import ModelSource
from ninferd.weights.token_domain import read_token_domain

CONVERTER = "ninferd"
OPTIONAL_COMPONENTS = ("vision", "mtp")
_PROBES = {"vision": "vision/patch_embedding", "mtp": "mtp/input_projection"}


@dataclass(frozen=True)
class Request:
    """The options of a conversion that decide what the artifact holds."""

    source: Path
    recipe: str
    without: frozenset[str] = frozenset()  # of OPTIONAL_COMPONENTS
    base: Path | None = None  # the same model in full precision
    draft: Path | None = None  # a DFlash or DFlash2 checkpoint
    draft_head_counts: Path | None = None
    draft_head_rows: int | None = None
    name: str | None = None  # metadata.name


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before a weight is read."""

    sources: Sources
    inventory: Inventory
    runs: dict[str, Runs]  # of every matrix
    frontend: dict[str, bytes]  # by name
    notes: tuple[str, ...]


def prepare(request: Request) -> Prepared:
    """Open the sources and plan the artifact. Raises InputError naming file, tensor and what would be right."""
    model = HuggingFaceSource.open(request.source)
    draft = None if request.draft is None else HuggingFaceSource.open(request.draft)
    geometry, notes = _geometry(request, model, draft)
    recipe = find_recipe(request.recipe, geometry.text.is_moe)
    sources = Sources(
        geometry,
        model,
        None if request.base is None else HuggingFaceSource.open(request.base),
        draft,
        _draft_token_ids(request, model, geometry),
    )
    _require_known(model, geometry, ("text", "vision", "mtp"))
    if draft is not None:
        _require_known(draft, geometry, ("dflash", "dflash2"))
    choices, runs = sources.choose(recipe)
    notes += [f"{name}: {choice.note}, stored as {choice.format}" for name, choice in choices.items() if choice.note]
    notes += _activation_notes(choices, runs)
    frontend, missing = collect_frontend(model, geometry.components)
    inventory = take_inventory(
        geometry,
        recipe,
        choices,
        {name: len(content) for name, content in frontend.items()},
        {"name": request.name or request.source.resolve().name},
        _provenance(request),
    )
    return Prepared(sources, inventory, runs, frontend, (*missing, *notes))


def _activation_notes(choices: Choices, runs: dict[str, Runs]) -> list[str]:
    """What is wrong with the calibration of matrices that are kept, each said once."""
    kept = (run.matrix for name, choice in choices.items() if choice.is_imported for run in runs.get(name, ()))
    return list(dict.fromkeys(matrix.activation_problem for matrix in kept if matrix.activation_problem))


def _geometry(request: Request, model: ModelSource, draft: ModelSource | None) -> tuple[ModelGeometry, list[str]]:
    """The components that are announced, really there and wanted."""
    where = str(model.path / "config.json")
    configs = component_configs(model.config, where)
    notes = []
    for component, probe in _PROBES.items():
        if component in configs and not model.has(probe):
            notes.append(f"{where}: announces {component}, but the weights have no {probe}: left out")
            del configs[component]
        elif component in request.without:
            configs.pop(component, None)
    if draft is not None:
        configs |= component_configs(draft.config, str(draft.path / "config.json"))
    geometry = model_geometry(configs, where)
    if request.draft_head_counts is not None:
        geometry = replace(geometry, proposal_rows=request.draft_head_rows)
    return geometry, notes


def _draft_token_ids(request: Request, model: ModelSource, geometry: ModelGeometry) -> NDArray[Any] | None:
    if request.draft_head_counts is None:
        return None
    if request.draft_head_rows is None:
        raise InputError("--draft-head-counts: needs --draft-head-rows, the number of rows of the draft head")
    domain = read_token_domain(model)
    counts = read_counts(request.draft_head_counts, geometry.text.vocab_size)
    special = {token.id for token in domain.added if token.special}
    return select_tokens(counts, domain.count, special, request.draft_head_rows)


def _require_known(source: ModelSource, geometry: ModelGeometry, components: tuple[str, ...]) -> None:
    source.require_no_others(frozenset(each.name for each in parameters(geometry) if each.component in components))


def _provenance(request: Request) -> dict[str, Any]:
    """Directory names only: where they lay on this machine is nobody's business."""
    paths = {"base": request.base, "model": request.source, "draft": request.draft}
    sources = {role: {"path": path.resolve().name} for role, path in paths.items() if path is not None}
    return {"converter": CONVERTER, "recipe": request.recipe, "sources": sources}
