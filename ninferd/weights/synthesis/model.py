"""What a synthetic model consists of, before a number of it is drawn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ninferd.errors import InputError
from ninferd.weights.convert.choices import Choices, assumed_choices
from ninferd.weights.convert.inventory import Inventory, take_inventory
from ninferd.weights.convert.recipes import Recipe, find_recipe
from ninferd.weights.json_file import read_json_object
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.synthesis.frontend import synthetic_frontend

MAX_CONFIG_BYTES = 4 << 20
ACTIVATION_DIVISOR = 336.0  # 2688 / 8: normalised activations reach 8 in rows of some thousand


@dataclass(frozen=True)
class SyntheticModel:
    """A geometry, a recipe and a seed, with all that follows from them."""

    name: str
    geometry: ModelGeometry
    recipe: Recipe
    choices: Choices
    inventory: Inventory
    frontend: dict[str, bytes]  # by name
    token_count: int
    seed: int

    def generator(self, name: str) -> np.random.Generator:
        """Random numbers for the object or parameter ``name``."""
        return np.random.default_rng([self.seed, *name.encode()])


def plan_synthetic(
    geometry: str, recipe_name: str, seed: int, without: Collection[str] = frozenset()
) -> SyntheticModel:
    """The model of a geometry: a published one by name, or of a ``config.json`` or the directory that holds it.

    ``without`` names components to leave out. A draft head, if there is one, gets as many rows as there are tokens at
    most. InputError for what is unknown or impossible.
    """
    name, found = _geometry(geometry)
    found = found.without(without)
    frontend, token_count = synthetic_frontend(found, geometry)
    if found.proposal_rows is not None:
        found = replace(found, proposal_rows=min(found.proposal_rows, token_count))
    recipe = find_recipe(recipe_name, found.text.is_moe)
    choices = assumed_choices(found, recipe)
    for parameter, choice in choices.items():
        if choice.activation_divisor is not None:
            choices[parameter] = replace(choice, activation_divisor=ACTIVATION_DIVISOR)
    inventory = take_inventory(
        found,
        recipe,
        choices,
        {role: len(content) for role, content in frontend.items()},
        {"name": f"{name}-synthetic"},
        {"converter": "ninferd", "recipe": recipe_name, "synthetic": {"geometry": name, "seed": seed}},
    )
    return SyntheticModel(name, found, recipe, choices, inventory, frontend, token_count, seed)


def _geometry(geometry: str) -> tuple[str, ModelGeometry]:
    if geometry in GEOMETRIES:
        return geometry, GEOMETRIES[geometry]
    path = Path(geometry)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise InputError(
            f"{geometry}: is neither a published model nor a config.json; published are {', '.join(GEOMETRIES)}"
        )
    configs = component_configs(read_json_object(path, MAX_CONFIG_BYTES), str(path))
    return path.resolve().parent.name, model_geometry(configs, str(path))
