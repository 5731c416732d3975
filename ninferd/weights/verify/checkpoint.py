"""Tensors of a Hugging Face directory: those of matrices in the layout they are stored in, and the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from ninferd.weights.artifact.text import plain
from ninferd.weights.formats.registry import BF16, FP8_ROW, FP16, FP32, FP64
from ninferd.weights.huggingface.quantised import parts_of
from ninferd.weights.huggingface.safetensors import StoredTensor
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import parameters
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import Plane, StoredMatrix
from ninferd.weights.verify.findings import Findings

PLAIN_FORMATS = {"BF16": (BF16, "<u2"), "F16": (FP16, "<f2"), "F32": (FP32, "<f4"), "F64": (FP64, "<f8")}
"""safetensors' type to format and dtype."""


@dataclass(frozen=True)
class NamedMatrix:
    """A matrix and the parameters that have rows of it."""

    matrix: StoredMatrix
    parameters: list[str] = field(default_factory=list)


def named_matrices(source: ModelSource, geometry: ModelGeometry, findings: Findings) -> dict[str, NamedMatrix]:
    """By name of the tensor; what cannot be resolved is an error in ``findings``."""
    found: dict[str, NamedMatrix] = {}
    for parameter in parameters(geometry):
        if parameter.direct is None and source.has(parameter.name):
            with findings.collected():
                for run in source.matrix(parameter.name, *parameter.shape):
                    named = found.setdefault(run.matrix.name, NamedMatrix(run.matrix))
                    if parameter.name not in named.parameters:
                        named.parameters.append(parameter.name)
    return found


def tensors_by_matrix(
    tensors: Mapping[str, StoredTensor], matrices: Mapping[str, NamedMatrix]
) -> tuple[dict[str, list[StoredTensor]], dict[str, StoredTensor]]:
    """(what each matrix consists of, by its name; all others by theirs): the codes, the scales and their scales."""
    names = {tensor.span: name for name, tensor in tensors.items()}
    owners = {
        part: matrix_name
        for matrix_name, named in matrices.items()
        for span in next(iter(named.matrix.planes.values())).spans
        for part in parts_of(_weight_name(names[span]))
    }
    parts: dict[str, list[StoredTensor]] = {name: [] for name in matrices}
    others = {}
    for name, tensor in tensors.items():
        if name in owners:
            parts[owners[name]].append(tensor)
        else:
            others[name] = tensor
    return parts, others


def plain_matrices(tensors: Iterable[StoredTensor]) -> Iterator[StoredMatrix]:
    """Tensors of numbers without any layout; those of integers are left out."""
    for tensor in tensors:
        rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.shape else 1
        if tensor.dtype == "F8_E4M3":
            format, name, dtype = FP8_ROW, "codes", "u1"
        elif tensor.dtype in PLAIN_FORMATS:
            (format, dtype), name = PLAIN_FORMATS[tensor.dtype], "values"
        else:
            continue
        plane = Plane(dtype, (rows, columns), (tensor.span,))
        yield StoredMatrix(f"tensor {plain(tensor.name)}", tensor.span.path, format, rows, columns, {name: plane})


def _weight_name(name: str) -> str:
    """Name of the weight whose values or codes a tensor has; compressed-tensors calls those otherwise."""
    base = name.removesuffix(".weight_packed")
    return name if base == name else f"{base}.weight"
