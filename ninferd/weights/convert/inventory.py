"""What an artifact will hold, to the byte, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ninferd.weights.artifact.directory import (
    Binding,
    BindingPart,
    Component,
    Proposal,
    StoredObject,
    TensorObject,
    Use,
)
from ninferd.weights.artifact.plan import Contents, resource_object, tensor_object
from ninferd.weights.convert.choices import Choice, Choices, aliases
from ninferd.weights.convert.recipes import Recipe, activation_policy
from ninferd.weights.formats.registry import FP32, NVFP4
from ninferd.weights.parameters.component_configs import component_configs_of
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.packing import packing_groups
from ninferd.weights.parameters.registry import Parameter, parameters

ACTIVATION_DIVISOR = "activation_input_divisor"
ROLES = {
    "text": ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
    "vision": ("preprocessor_config.json", "video_preprocessor_config.json"),
}
"""Frontend files by component, in payload order."""


@dataclass(frozen=True)
class Weight:
    """A tensor object and the parameters that lie in it, one after the other."""

    record: TensorObject
    members: tuple[Parameter, ...]
    choices: tuple[Choice, ...]  # of the members, all of one format


@dataclass(frozen=True)
class Inventory:
    """An artifact without its bytes."""

    contents: Contents
    weights: tuple[Weight, ...]
    auxiliaries: Mapping[str, float]  # object id to its value


def take_inventory(
    geometry: ModelGeometry,
    recipe: Recipe,
    choices: Choices,
    resource_bytes: Mapping[str, int],
    metadata: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Inventory:
    """The inventory of a model whose frontend files, by name, have ``resource_bytes``.

    Objects are ordered and named as the native converter does: resources, packed weights in model order, single weights
    in model order, one activation divisor for each use that has one.
    """
    components = _components(geometry, resource_bytes)
    objects: list[StoredObject] = [
        resource_object(object_id, resource_bytes[role])
        for component in components.values()
        for role, object_id in component.resources.items()
    ]
    by_name = {parameter.name: parameter for parameter in parameters(geometry)}
    weights = [
        _weight(f"weight/{index:06d}", [by_name[name] for name in names], [choices[name] for name in names])
        for index, names in enumerate(_parents(geometry, recipe, choices))
    ]
    bindings = {name: binding for weight in weights for name, binding in _bindings(weight)}
    for alias, target in aliases(geometry, recipe).items():
        bindings[alias] = bindings[target]
    uses, auxiliaries = _uses(geometry, recipe, choices)
    objects += [weight.record for weight in weights]
    objects += [tensor_object(object_id, (), FP32) for object_id in auxiliaries]
    ordered = {name: bindings[name] for name in by_name}
    contents = Contents(tuple(objects), components, ordered, uses, metadata, provenance)
    return Inventory(contents, tuple(weights), auxiliaries)


def _components(geometry: ModelGeometry, resource_bytes: Mapping[str, int]) -> dict[str, Component]:
    components = {}
    for name, config in component_configs_of(geometry).items():
        resources = {role: f"resource/{name}/{role}" for role in ROLES.get(name, ()) if role in resource_bytes}
        proposal = None
        if name == "text" and geometry.proposal_rows is not None:
            proposal = Proposal("indexed", geometry.proposal_rows)
        components[name] = Component(config, None if name == "text" else "text", resources, proposal)
    return components


def _parents(geometry: ModelGeometry, recipe: Recipe, choices: Choices) -> Iterator[Sequence[str]]:
    """Names of the members of every weight object, packed ones first."""
    packed: set[str] = set()
    for group in packing_groups(geometry):
        if not packed.intersection(group) and _can_share(group, recipe, choices):
            packed.update(group)
            yield group
    for name in choices:
        if name not in packed:
            yield (name,)


def _can_share(group: Sequence[str], recipe: Recipe, choices: Choices) -> bool:
    if any(name not in choices or recipe.is_separate(name) for name in group):
        return False
    chosen = [choices[name] for name in group]
    if len({(choice.format, choice.is_imported) for choice in chosen}) > 1:
        return False
    return len({choice.divisor for choice in chosen}) == 1 or _is_bank(group)


def _is_bank(group: Sequence[str]) -> bool:
    """Whether these are the experts of a layer: equally high matrices, which may keep a divisor each."""
    return "/moe/experts/" in group[0]


def _weight(object_id: str, members: Sequence[Parameter], choices: Sequence[Choice]) -> Weight:
    shape = members[0].shape
    if len(members) > 1:
        shape = (sum(member.shape[0] for member in members), *shape[1:])
    divisors = len(members) if len({choice.divisor for choice in choices}) > 1 else 1
    return Weight(tensor_object(object_id, shape, choices[0].format, divisors), tuple(members), tuple(choices))


def _bindings(weight: Weight) -> Iterator[tuple[str, Binding]]:
    if len(weight.members) == 1:
        part = BindingPart(weight.record.id, 0, weight.record.elements)
        yield weight.members[0].name, Binding((part,), is_whole=True)
        return
    begin = 0
    for member in weight.members:
        end = begin + prod(member.shape)
        yield member.name, Binding((BindingPart(weight.record.id, begin, end),))
        begin = end


def _uses(geometry: ModelGeometry, recipe: Recipe, choices: Choices) -> tuple[tuple[Use, ...], dict[str, float]]:
    shared = aliases(geometry, recipe)
    uses: list[Use] = []
    auxiliaries: dict[str, float] = {}
    for parameter in parameters(geometry):
        choice = choices[shared.get(parameter.name, parameter.name)]
        divisor = choice.activation_divisor if choice.format == NVFP4 else None
        policy = activation_policy(choice.format, divisor is not None)
        for used_with in parameter.inputs:
            bound = {}
            if divisor is not None:
                object_id = f"auxiliary/{len(auxiliaries):06d}"
                auxiliaries[object_id] = divisor
                bound[ACTIVATION_DIVISOR] = Binding((BindingPart(object_id, 0, 1),), is_whole=True)
            uses.append(Use(parameter.name, used_with, policy, bound))
    return tuple(uses), auxiliaries
