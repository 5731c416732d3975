"""From ``Directory`` to the JSON text of a version 3 file, in the member order of the public converters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ninferd.weights.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileRecord,
    ResourceObject,
    StoredObject,
    Use,
)


def encode_directory(directory: Directory) -> bytes:
    """Compact UTF-8 JSON. ValueError if a configuration or the metadata holds NaN, an infinity or no JSON value."""
    root = {
        "components": {name: _component(component) for name, component in directory.components.items()},
        "objects": [_object(entry) for entry in directory.objects.values()],
        "bindings": _bindings(directory.bindings),
        "uses": [_use(use) for use in directory.uses],
        "files": [_file(record) for record in directory.files],
        "metadata": directory.metadata,
        "provenance": directory.provenance,
    }
    return json.dumps(root, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _component(component: Component) -> dict[str, Any]:
    record: dict[str, Any] = {"config": component.config}
    if component.target is not None:
        record["target"] = component.target
    if component.resources:
        record["resources"] = dict(component.resources)
    if component.proposal is not None:
        rows = component.proposal.rows
        record["proposal"] = {"domain": component.proposal.domain, **({} if rows is None else {"rows": rows})}
    return record


def _object(entry: StoredObject) -> dict[str, Any]:
    if isinstance(entry, ResourceObject):
        return {
            "id": entry.id,
            "encoding": entry.encoding,
            "offset": entry.offset,
            "bytes": entry.size_bytes,
            "kind": "resource",
        }
    return {
        "id": entry.id,
        "shape": list(entry.shape),
        "format": entry.format,
        "layout": entry.layout,
        **({"divisors": entry.divisors} if entry.divisors > 1 else {}),
        "offset": entry.offset,
        "bytes": entry.size_bytes,
        "kind": "tensor",
    }


def _binding(binding: Binding) -> dict[str, Any]:
    if binding.is_whole:
        return {"object": binding.parts[0].object_id}
    return {"parts": [{"object": part.object_id, "range": [part.begin, part.end]} for part in binding.parts]}


def _use(use: Use) -> dict[str, Any]:
    record: dict[str, Any] = {"parameter": use.parameter, "input": use.input}
    if use.activation_policy is not None:
        record["activation_policy"] = use.activation_policy
    if use.auxiliaries:
        record["auxiliaries"] = _bindings(use.auxiliaries)
    return record


def _bindings(bindings: Mapping[str, Binding]) -> dict[str, Any]:
    return {name: _binding(binding) for name, binding in bindings.items()}


def _file(record: FileRecord) -> dict[str, Any]:
    return {"path": record.name, "payload_bytes": record.payload_bytes}
