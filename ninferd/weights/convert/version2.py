"""The size that a planned artifact would have as a version 2 file: for comparison with published ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import TensorObject
from ninferd.weights.artifact.framing import FILE_ALIGNMENT, OLD_HEADER_BYTES, TENSOR_ALIGNMENT, align_up
from ninferd.weights.artifact.plan import tensor_object
from ninferd.weights.convert.inventory import Inventory, Weight
from ninferd.weights.formats.registry import BF16, FP8_ROW, FP32, INT32, NVFP4, Q4, Q5, Q6, Q8
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.legacy_names import RESOURCE_PREFIX, divisor_name, legacy_objects
from ninferd.weights.parameters.registry import parameters

_FORMATS = {
    BF16: "BF16",
    FP32: "FP32",
    INT32: "I32",
    Q4: "Q4G64_F16S",
    Q5: "Q5G64_F16S",
    Q6: "Q6G64_F16S",
    Q8: "W8G32_F16S",
    NVFP4: "NVFP4",
    FP8_ROW: "FP8_E4M3FN_ROW_BF16S",
}


@dataclass(frozen=True)
class Version2File:
    """Framing and objects of one file."""

    objects: int
    payload_start: int
    payload_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.payload_start + self.payload_bytes


def version2_file(
    geometry: ModelGeometry, inventory: Inventory, resource_bytes: Mapping[str, int], weights_id: str
) -> Version2File:
    """The file with the tensors of ``inventory`` under their old names, in model order, divisors behind their weights.

    InputError if a tensor has no name there: only what was published in version 2 has one.
    """
    records: list[dict[str, Any]] = []
    end = 0
    for name, size_bytes in resource_bytes.items():
        encoding = {"kind": "resource", "encoding": "raw-bytes-v1"}
        records.append({"name": RESOURCE_PREFIX + name, **encoding, "offset": end, "bytes": size_bytes})
        end += size_bytes
    for name, tensor in _tensors(geometry, inventory):
        offset = align_up(end, TENSOR_ALIGNMENT)
        records.append(_record(name, tensor, offset))
        end = offset + tensor.size_bytes
    identity = {"model_id": inventory.contents.metadata["name"], "weights_id": weights_id}
    text = json.dumps({"identity": identity, "objects": records}, separators=(",", ":"), ensure_ascii=False)
    return Version2File(len(records), align_up(OLD_HEADER_BYTES + len(text.encode()), FILE_ALIGNMENT), end)


def _tensors(geometry: ModelGeometry, inventory: Inventory) -> Iterator[tuple[str, TensorObject]]:
    """Names and records in file order."""
    names = {legacy.parameters: legacy.name for legacy in legacy_objects(geometry)}
    weights = {weight.members[0].name: weight for weight in inventory.weights}
    for parameter in parameters(geometry):
        weight = weights.get(parameter.name)
        if weight is None:
            continue
        members = tuple(member.name for member in weight.members)
        if members not in names or weight.record.format not in _FORMATS:
            raise InputError(f"{', '.join(members[:4])} as {weight.record.format}: version 2 has no name for it")
        yield names[members], weight.record
        yield from _divisor(weight)


def _divisor(weight: Weight) -> Iterator[tuple[str, TensorObject]]:
    if weight.choices[0].activation_divisor is not None:
        name = divisor_name(weight.members[0].name)
        if name is None:
            raise InputError(f"{weight.members[0].name}: version 2 has no name for its activation divisor")
        yield name, tensor_object(name, (), FP32)


def _record(name: str, tensor: TensorObject, offset: int) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "tensor",
        "shape": list(tensor.shape),
        "format": _FORMATS[tensor.format],
        "layout": tensor.layout.replace("block_scale", "blockscale").replace("_", "-"),
        "offset": offset,
        "bytes": tensor.size_bytes,
    }
