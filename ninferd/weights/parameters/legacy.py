"""Version 1 and 2 artifacts as if they were version 3: components, bindings and uses from object names alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import (
    Binding,
    BindingPart,
    Component,
    Proposal,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninferd.weights.artifact.text import plain, shown
from ninferd.weights.formats.registry import FP8_ROW, NVFP4
from ninferd.weights.parameters.component_configs import component_configs_of
from ninferd.weights.parameters.geometry import COMPONENTS, DraftGeometry, ModelGeometry
from ninferd.weights.parameters.legacy_names import RESOURCE_PREFIX, LegacyObject, divisor_name, legacy_objects
from ninferd.weights.parameters.presets import DFLASH2_27B, DFLASH_27B, DFLASH_35B, GEOMETRIES
from ninferd.weights.parameters.registry import parameters

_DRAFTS: dict[str, tuple[DraftGeometry, ...]] = {
    "qwen3.6-27b": (DFLASH_27B, DFLASH2_27B),
    "qwen3.8-27b": (DFLASH_27B, DFLASH2_27B),
    "qwen3.6-35b-a3b": (DFLASH_35B,),
}
_VISION_RESOURCES = ("preprocessor_config.json", "video_preprocessor_config.json")
_POLICIES = {NVFP4: "AllowA4", FP8_ROW: "AllowA8"}


@dataclass(frozen=True)
class LegacyView:
    """What a version 3 directory would say of the same objects."""

    components: Mapping[str, Component]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]


def legacy_view(model_id: str, objects: Mapping[str, StoredObject], where: str) -> LegacyView:
    """The view of the named ``objects`` of a file; ``where`` is its path, for messages.

    Which components there are, and which parents are fused, is what the names say; formats are those of the objects.
    Raises InputError for an unknown ``model_id``, an object of unknown name in a known component, one of another shape
    than the model's, and a parameter that two objects hold.
    """
    geometry = _geometry(model_id, objects, where)
    tensors = {name: found for name, found in objects.items() if isinstance(found, TensorObject)}
    bindings: dict[str, Binding] = {}
    formats: dict[str, str] = {}
    used: set[str] = set()
    shapes = {parameter.name: parameter.shape for parameter in parameters(geometry)}
    for candidate in legacy_objects(geometry):
        if candidate.name not in tensors:
            continue
        tensor = tensors[candidate.name]
        used.add(candidate.name)
        _require_shape(tensor, [shapes[name] for name in candidate.parameters], f"{where}: object {candidate.name}")
        for name, binding in _bound(candidate, tensor, shapes):
            if name in bindings:
                other = bindings[name].parts[0].object_id
                raise InputError(f"{where}: objects {other} and {candidate.name} both hold {name}")
            bindings[name], formats[name] = binding, tensor.format
    uses = tuple(_uses(geometry, bindings, formats, tensors, used))
    _require_no_others(tensors, used, where)
    return LegacyView(_components(geometry, objects), bindings, uses)


def _geometry(model_id: str, objects: Mapping[str, StoredObject], where: str) -> ModelGeometry:
    known = GEOMETRIES.get(model_id)
    if known is None:
        raise InputError(f"{where}: model_id {shown(model_id)} is unknown; known: {', '.join(GEOMETRIES)}")
    there = {name.split("/", 1)[0] for name, found in objects.items() if isinstance(found, TensorObject)}
    drafts = tuple(draft for draft in _DRAFTS[model_id] if draft.kind in there)
    head = objects.get("text/draft_head")
    rows = head.shape[0] if isinstance(head, TensorObject) and head.shape else None
    return replace(known.without(set(COMPONENTS) - there), drafts=drafts, proposal_rows=rows)


def _require_shape(tensor: TensorObject, shapes: list[tuple[int, ...]], where: str) -> None:
    """Parts of one parent lie one below the other; vectors form a longer vector."""
    expected = shapes[0] if len(shapes) == 1 else (sum(shape[0] for shape in shapes), *shapes[0][1:])
    if tensor.shape != expected:
        raise InputError(f"{where} has shape {list(tensor.shape)}, this model needs {list(expected)}")


def _bound(
    candidate: LegacyObject, tensor: TensorObject, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Binding]]:
    begin = 0
    for name in candidate.parameters:
        end = begin + prod(shapes[name])
        binding = Binding((BindingPart(tensor.id, begin, end),), is_whole=len(candidate.parameters) == 1)
        yield name, binding
        for alias, original in candidate.aliases:
            if original == name:
                yield alias, binding
        begin = end


def _uses(
    geometry: ModelGeometry,
    bindings: Mapping[str, Binding],
    formats: Mapping[str, str],
    tensors: Mapping[str, TensorObject],
    used: set[str],
) -> Iterator[Use]:
    for parameter in parameters(geometry):
        if parameter.name not in bindings:
            continue
        divisor = divisor_name(parameter.name)
        auxiliaries = {}
        if divisor is not None and divisor in tensors:
            used.add(divisor)
            whole = Binding((BindingPart(divisor, 0, tensors[divisor].elements),), is_whole=True)
            auxiliaries = {"activation_input_divisor": whole}
        policy = _POLICIES.get(formats[parameter.name], "A16Only")
        for source in parameter.inputs:
            yield Use(parameter.name, source, policy, auxiliaries)


def _require_no_others(tensors: Mapping[str, TensorObject], used: set[str], where: str) -> None:
    for name in tensors:
        if name not in used and name.split("/", 1)[0] in COMPONENTS:
            raise InputError(f"{where}: object {plain(name)} is not one of this model's")


def _components(geometry: ModelGeometry, objects: Mapping[str, StoredObject]) -> dict[str, Component]:
    resources: dict[str, dict[str, str]] = {"text": {}, "vision": {}}
    for name, found in objects.items():
        if isinstance(found, ResourceObject) and name.startswith(RESOURCE_PREFIX):
            role = name.removeprefix(RESOURCE_PREFIX)
            resources["vision" if role in _VISION_RESOURCES else "text"][role] = name
    proposal = Proposal("full") if geometry.proposal_rows is None else Proposal("indexed", geometry.proposal_rows)
    return {
        name: Component(
            config=config,
            target=None if name == "text" else "text",
            resources=resources.get(name, {}),
            proposal=proposal if name == "text" else None,
        )
        for name, config in component_configs_of(geometry).items()
    }
