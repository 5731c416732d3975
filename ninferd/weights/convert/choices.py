"""How each parameter will be stored: its format, and whether the bytes of the source are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ninferd.weights.convert.recipes import Recipe
from ninferd.weights.formats.registry import NVFP4, NVFP4_TILE_COLUMNS, NVFP4_TILE_ROWS, Q8
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter, parameters


@dataclass(frozen=True)
class Choice:
    """What becomes of one parameter."""

    format: str
    is_imported: bool = False  # codes and scales of the source are kept bit for bit
    divisor: float | None = None  # of imported nvfp4
    activation_divisor: float | None = None  # calibrated d_x of nvfp4
    note: str = ""  # why it is not what the recipe says


Choices = Mapping[str, Choice]
"""By parameter; aliases have none."""


def aliases(geometry: ModelGeometry, recipe: Recipe) -> dict[str, str]:
    """Parameters that are bound to the elements of another one: tied heads, context projections of drafters."""
    found = {}
    if geometry.text.tie_word_embeddings:
        found["text/output_head"] = "text/token_embedding"
    if recipe.shares_context:
        for draft in geometry.drafts:
            for layer in range(len(draft.layer_types)):
                prefix = f"{draft.kind}/layers/{layer}/attention/"
                found |= {f"{prefix}context_{part}": f"{prefix}{part}" for part in ("key", "value")}
    return found


def assumed_choices(geometry: ModelGeometry, recipe: Recipe) -> dict[str, Choice]:
    """Choices where only the geometry is known: as from a source that has what the recipe imports."""
    calibrated = 1.0 if recipe.is_calibrated else None
    chosen = {}
    for parameter, format, note in wanted_formats(geometry, recipe):
        has_divisor = format == NVFP4 and parameter.component == "text"
        chosen[parameter.name] = Choice(format, activation_divisor=calibrated if has_divisor else None, note=note)
    return chosen


def wanted_formats(geometry: ModelGeometry, recipe: Recipe) -> Iterator[tuple[Parameter, str, str]]:
    """Every parameter that is no alias, its format, and a note where the recipe's format is not possible."""
    layer_count = len(geometry.text.layer_types)
    shared = aliases(geometry, recipe)
    for parameter in parameters(geometry):
        if parameter.name in shared:
            continue
        if parameter.direct is not None:
            yield parameter, parameter.direct, ""
            continue
        format = recipe.format_of(parameter.name, layer_count)
        if format == NVFP4 and not _fits_nvfp4(parameter.shape):
            yield parameter, Q8, f"{list(parameter.shape)} does not fit the tiles of {NVFP4}"
        else:
            yield parameter, format, ""


def _fits_nvfp4(shape: tuple[int, ...]) -> bool:
    return shape[0] % NVFP4_TILE_ROWS == 0 and shape[1] % NVFP4_TILE_COLUMNS == 0
