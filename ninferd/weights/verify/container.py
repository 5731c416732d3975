"""What an artifact's directory promises beyond its structure: auxiliaries, resources, bytes between objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Binding, Component, TensorObject, Use
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.text import plain
from ninferd.weights.formats.minifloat import float32_of_bf16
from ninferd.weights.formats.registry import BF16, FP32, INT32
from ninferd.weights.stored import Plane
from ninferd.weights.verify.findings import Findings

ACTIVATION_DIVISOR = "activation_input_divisor"
HADAMARD_SIGNS = "hadamard_signs"
HADAMARD_BLOCK = 1024
INPUT_COLUMNS = "input_columns"
MAX_AUXILIARY_ELEMENTS = 1 << 24
GAP_CHUNK_BYTES = 1 << 20


def check_resources(artifact: Artifact, components: Mapping[str, Component], findings: Findings) -> None:
    """Resources of components must be UTF-8, and JSON objects where their name says so."""
    for component in components.values():
        for role, object_id in component.resources.items():
            with findings.collected():
                _check_resource(artifact, role, object_id)


def _check_resource(artifact: Artifact, role: str, object_id: str) -> None:
    where = f"{artifact.path}: resource {plain(role)} (object {plain(object_id)})"
    try:
        text = artifact.resource(object_id).decode()
        if role.endswith(".json") and not isinstance(json.loads(text), dict):
            raise InputError(f"{where}: must hold a JSON object")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not valid JSON: {error}") from None


def check_auxiliaries(artifact: Artifact, uses: Iterable[Use], findings: Findings) -> None:
    """Tensors that uses refer to, each once."""
    seen: set[tuple[str, Binding]] = set()
    for use in uses:
        for role, binding in use.auxiliaries.items():
            if (role, binding) not in seen:
                seen.add((role, binding))
                with findings.collected():
                    where = f"{artifact.path}: {plain(role)} of {plain(use.parameter)}"
                    _check_auxiliary(artifact, role, binding, where, findings)


def _check_auxiliary(artifact: Artifact, role: str, binding: Binding, where: str, findings: Findings) -> None:
    if role == ACTIVATION_DIVISOR:
        values = _values(artifact, binding, where, FP32)
        if binding.elements != 1 or not np.isfinite(values[0]) or values[0] <= 0:
            raise InputError(f"{where}: must be one finite number above 0, found {values[:4].tolist()}")
    elif role == HADAMARD_SIGNS:
        values = _values(artifact, binding, where, BF16)
        if len(values) % HADAMARD_BLOCK or not (np.abs(values) == 1).all():
            raise InputError(f"{where}: must be a multiple of {HADAMARD_BLOCK} signs of 1 and -1")
    elif role == INPUT_COLUMNS:
        values = _values(artifact, binding, where, INT32)
        if not (np.sort(values) == np.arange(len(values))).all():
            raise InputError(f"{where}: must be a permutation of 0 to {len(values) - 1}")
    else:
        findings.warn(f"{where}: is an unknown auxiliary; the use that needs it cannot be computed")


def _values(artifact: Artifact, binding: Binding, where: str, format: str) -> NDArray[Any]:
    if binding.elements > MAX_AUXILIARY_ELEMENTS:
        raise InputError(f"{where}: has {binding.elements} elements; at most {MAX_AUXILIARY_ELEMENTS} are read")
    parts = []
    for part in binding.parts:
        matrix = artifact.matrix(part.object_id)
        if matrix.format != format:
            raise InputError(f"{where}: object {plain(part.object_id)} is {matrix.format}, {format} is needed")
        parts.append(matrix.planes["values"].array().reshape(-1)[part.begin : part.end])
    values: NDArray[Any] = np.concatenate(parts)
    return float32_of_bf16(values) if format == BF16 else values


def check_gaps(artifact: Artifact, findings: Findings) -> None:
    """Bytes that belong to no value: writers leave them zero, readers do not look; one warning for all."""
    count, first = 0, None
    for begin, end in _gaps(artifact):
        for start in range(begin, end, GAP_CHUNK_BYTES):
            spans = artifact.payload.spans(start, min(GAP_CHUNK_BYTES, end - start))
            nonzero = np.flatnonzero(Plane("u1", (sum(span.size_bytes for span in spans),), spans).array())
            if len(nonzero) and first is None:
                first = artifact.payload.spans(start + int(nonzero[0]), 1)[0]
            count += len(nonzero)
    if first is not None:
        findings.warn(
            f"{first.path}: {count} of the bytes between values are not zero, the first is byte {first.offset}"
        )


def _gaps(artifact: Artifact) -> Iterator[tuple[int, int]]:
    """Ranges of the logical payload without a value."""
    end = 0
    for entry in artifact.objects.values():
        runs = [(entry.offset, entry.offset + entry.size_bytes)]
        if isinstance(entry, TensorObject):
            with suppress(InputError):  # which is reported where its values are looked at
                runs = [(entry.offset + spec.offset, entry.offset + spec.end) for spec in artifact.planes(entry)]
        for begin, last in runs:
            if begin > end:
                yield end, begin
            end = last
    if artifact.payload_bytes > end:
        yield end, artifact.payload_bytes
