"""Directories of versions 1 and 2: a flat list of named objects, with other spellings of the same formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import RAW_BYTES, ResourceObject, StoredObject, TensorObject
from ninferd.weights.artifact.members import Members, json_object
from ninferd.weights.artifact.objects import add_object, parse_shape
from ninferd.weights.artifact.text import plain, shown
from ninferd.weights.formats.registry import LAYOUT_OF

_FORMATS_V1 = {
    "BF16": "bf16",
    "FP32": "fp32",
    "I32": "int32",
    "Q4G64_F16S": "q4_g64_fp16",
    "Q5G64_F16S": "q5_g64_fp16",
    "Q6G64_F16S": "q6_g64_fp16",
    "W8G32_F16S": "q8_g32_fp16",
}
_FORMATS_V2 = _FORMATS_V1 | {"NVFP4": "nvfp4", "FP8_E4M3FN_ROW_BF16S": "fp8_e4m3fn_row_bf16"}
_LAYOUTS_V1 = {"contiguous-le-v1": "contiguous_le_v1", "row-split-k128-v1": "row_split_k128_v1"}
_LAYOUTS_V2 = _LAYOUTS_V1 | {"blockscale-k16-m128x4-v1": "block_scale_k16_m128x4_v1", "row-scale-v1": "row_scale_v1"}
_ENCODINGS = {"raw-bytes-v1": RAW_BYTES}


@dataclass(frozen=True)
class OldDirectory:
    """A version 1 or 2 directory. Formats, layouts and encodings are spelled as in version 3."""

    model_id: str
    weights_id: str | None  # version 1 has none
    objects: Mapping[str, StoredObject]  # by name, in payload order


def parse_old_directory(path: str, root: Any, version: int, payload_bytes: int) -> OldDirectory:
    """The directory that ``root``, a parsed JSON text, describes. InputError as ``parse_directory``."""
    where = f"{path}: directory"
    if version == 1:
        members = identity = Members(where, root, ("model_id", "objects"))
    else:
        members = Members(where, root, ("identity", "objects"))
        identity = Members(f"{where}: identity", members.value("identity"), ("model_id", "weights_id"))
    records = members.array("objects")
    if not records:
        raise InputError(f"{path}: objects is empty")
    objects: dict[str, StoredObject] = {}
    for index, value in enumerate(records):
        add_object(path, objects, _parse_object(f"{path}: objects[{index}]", path, value, version), payload_bytes)
    return OldDirectory(
        identity.identifier("model_id"), identity.identifier("weights_id") if version == 2 else None, objects
    )


def _parse_object(where: str, path: str, value: Any, version: int) -> StoredObject:
    record = json_object(where, value)
    if isinstance(record.get("name"), str):
        where = f"{path}: object {plain(record['name'])}"
    kind = record.get("kind")
    if kind == "resource":
        members = Members(where, record, ("name", "kind", "encoding", "offset", "bytes"))
        return ResourceObject(
            id=members.identifier("name"),
            encoding=_respelled(members, "encoding", _ENCODINGS, {RAW_BYTES}),
            offset=members.integer("offset"),
            size_bytes=members.integer("bytes", minimum=1),
        )
    if kind == "tensor":
        members = Members(where, record, ("name", "kind", "shape", "format", "layout", "offset", "bytes"))
        return TensorObject(
            id=members.identifier("name"),
            shape=parse_shape(members),
            format=_respelled(members, "format", _FORMATS_V1 if version == 1 else _FORMATS_V2, LAYOUT_OF.keys()),
            layout=_respelled(members, "layout", _LAYOUTS_V1 if version == 1 else _LAYOUTS_V2, set(LAYOUT_OF.values())),
            offset=members.integer("offset"),
            size_bytes=members.integer("bytes", minimum=1),
        )
    if "kind" not in record:
        raise InputError(f"{where}: member 'kind' is missing")
    raise InputError(f"{where}: kind must be 'tensor' or 'resource', found {shown(kind)}")


def _respelled(members: Members, name: str, spellings: Mapping[str, str], newer: Any) -> str:
    """The version 3 spelling of a name; an unknown name stays, since it only matters once the object is used."""
    found = members.short_name(name)
    if found in newer:
        known = ", ".join(spellings)
        raise InputError(f"{members.where}: {name} {found} is a spelling of version 3; this version has {known}")
    return spellings.get(found, found)
