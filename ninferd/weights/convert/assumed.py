"""Inventories of published models, of which only the geometry is known."""

from __future__ import annotations

from collections.abc import Mapping

from ninferd.weights.convert.choices import assumed_choices
from ninferd.weights.convert.inventory import Inventory, take_inventory
from ninferd.weights.convert.recipes import find_recipe
from ninferd.weights.parameters.geometry import ModelGeometry


def assumed_inventory(
    name: str, geometry: ModelGeometry, recipe_name: str, resource_bytes: Mapping[str, int]
) -> Inventory:
    """What the native converter makes of the model ``name``, provenance included (it counts for the size).

    Imported formats are assumed where the recipe expects them, and one divisor in all members of a fused parent.
    """
    recipe = find_recipe(recipe_name, geometry.text.is_moe)
    roles = ("base", *(("quantized",) if recipe.is_calibrated else ()), *(draft.kind for draft in geometry.drafts))
    sources = {role: {"path": f"/models/{name}-{role}"} for role in roles}
    provenance = {"converter": "ninfer-v3", "recipe": recipe_name, "sources": sources}
    choices = assumed_choices(geometry, recipe)
    return take_inventory(geometry, recipe, choices, resource_bytes, {"name": name}, provenance)
