"""Small artifacts of real architecture in any format and packing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.artifact.directory import Binding, BindingPart, Component
from ninferd.weights.artifact.plan import Contents, tensor_object
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.formats.minifloat import bf16_of_float32
from ninferd.weights.formats.registry import BF16, FP8_ROW, FP32, GROUPED, NVFP4
from ninferd.weights.formats.swizzle import swizzled
from ninferd.weights.parameters.component_configs import component_configs_of
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter, text_parameters

Values = Mapping[str, NDArray[np.float32]]
FormatOf = Callable[[Parameter], str]
PARENTS = (
    ("attention/query", "attention/key", "attention/gate", "attention/value"),
    ("gdn/query", "gdn/key", "gdn/value", "gdn/z"),
    ("gdn/a_projection", "gdn/b_projection"),
    ("mlp/gate", "mlp/up"),
    ("moe/shared/gate", "moe/shared/up"),
    ("moe/router", "moe/shared_score"),
)
"""Parameters of a layer that a fused artifact stores in one object, in the order of the published ones."""


def write_artifact(
    path: Path,
    geometry: ModelGeometry,
    values: Values,
    format_of: FormatOf,
    *,
    is_fused: bool,
    aliases: Mapping[str, str] | None = None,
    max_file_bytes: int | None = None,
    rebind: Callable[[dict[str, Binding]], None] = lambda bindings: None,
) -> None:
    """Encode and write the text model ``values``, in bfloat16 what cannot be nvfp4.

    Fused, projections of one input share an object, all gates and ups of a layer's experts another, all downs a third.
    ``aliases`` are bound to the elements of other parameters; ``rebind`` may change the bindings at last.
    """
    parameters = {each.name: each for each in text_parameters(geometry)}
    parents = _parents(geometry, list(parameters)) if is_fused else [(name,) for name in parameters]
    objects, planes = [], {}
    bindings: dict[str, Binding] = {}
    for parent in parents:
        members = [name for name in parent if name not in (aliases or {})]
        if not members:
            continue
        first = parameters[members[0]]
        stored = np.concatenate([values[name] for name in members]) if len(members) > 1 else values[members[0]]
        format = first.direct if first.direct is not None else _possible(format_of(first), stored.shape)
        divisors = len(members) if format == NVFP4 and "/experts/" in members[0] else 1
        planes[members[0]] = encoded(stored, format, divisors)
        objects.append(tensor_object(members[0], stored.shape, format, divisors))
        begin = 0
        for name in members:
            end = begin + values[name].size
            bindings[name] = Binding((BindingPart(members[0], begin, end),), is_whole=len(members) == 1)
            begin = end
    for alias, name in (aliases or {}).items():
        bindings[alias] = bindings[name]
    rebind(bindings)
    contents = Contents(tuple(objects), {"text": Component(component_configs_of(geometry)["text"])}, bindings)
    with ArtifactWriter(path, contents, max_file_bytes=max_file_bytes) as writer:
        for object_id, arrays in planes.items():
            sinks = writer.planes(object_id)
            for plane, array in arrays.items():
                sinks.write(plane, array)
            sinks.close()
        writer.publish()


def encoded(values: NDArray[np.float32], format: str, divisors: int = 1) -> dict[str, NDArray[Any]]:
    """The planes of an object."""
    encoders = NumpyEncoders()
    if format == FP32:
        return {"values": values}
    if format == BF16:
        return {"values": bf16_of_float32(values)}
    if format == FP8_ROW:
        codes, row_scales = encoders.fp8_rows(values)
        return {"codes": codes, "scales": row_scales}
    if format in GROUPED:
        codes, high, scales = encoders.grouped(values, GROUPED[format].bits)
        return {"codes": codes, **({} if high is None else {"high": high}), "scales": scales}
    assert format == NVFP4
    blocks = np.split(values, divisors)
    numbers = [float(np.float32(2688 / np.abs(block).max())) for block in blocks]
    parts = [encoders.nvfp4(block, number, "max_abs") for block, number in zip(blocks, numbers, strict=True)]
    return {
        "codes": np.concatenate([codes for codes, _ in parts]),
        "scales": swizzled(np.concatenate([words for _, words in parts])),
        "divisors": np.asarray(numbers, "<f4"),
    }


def _possible(format: str, shape: tuple[int, ...]) -> str:
    return BF16 if format == NVFP4 and (shape[0] % 128 or shape[1] % 64) else format


def _parents(geometry: ModelGeometry, names: list[str]) -> list[tuple[str, ...]]:
    parents: list[tuple[str, ...]] = []
    for layer in range(len(geometry.text.layer_types)):
        prefix = f"text/layers/{layer}/"
        parents += [tuple(prefix + part for part in group) for group in PARENTS]
        experts = [name for name in names if name.startswith(f"{prefix}moe/experts/")]
        parents.append(tuple(name for name in experts if not name.endswith("/down")))
        parents.append(tuple(name for name in experts if name.endswith("/down")))
    parents = [tuple(name for name in parent if name in names) for parent in parents]
    parents = [parent for parent in parents if parent]
    packed = {name for parent in parents for name in parent}
    return [*parents, *((name,) for name in names if name not in packed)]
