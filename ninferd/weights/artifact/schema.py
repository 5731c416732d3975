"""From the JSON of a version 3 directory to ``Directory``. Unknown members are errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import (
    ACTIVATION_POLICIES,
    U64_MAX,
    Binding,
    BindingPart,
    Component,
    Directory,
    FileRecord,
    Proposal,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninferd.weights.artifact.members import Members, identifier, integer, json_object
from ninferd.weights.artifact.objects import add_object, parse_shape
from ninferd.weights.artifact.strict_json import StrictJsonError, require_shallow
from ninferd.weights.artifact.text import plain, shown

MAX_FILE_NAME_BYTES = 255


def parse_directory(path: str, root: Any) -> Directory:
    """The directory that ``root``, a parsed JSON text, describes; ``path`` is the entry file, for messages.

    Raises InputError for everything that can be seen without the payload. Formats and layouts are not looked at, so
    that a file with an unknown one can be listed.
    """
    members = Members(
        f"{path}: directory", root, ("components", "objects", "bindings", "uses", "files"), ("metadata", "provenance")
    )
    files = _parse_files(path, members.array("files"))
    objects = _parse_objects(path, members.array("objects"), sum(file.payload_bytes for file in files))
    bindings = {
        _key(f"{path}: bindings", name): _parse_binding(f"{path}: binding {plain(name)}", value, objects)
        for name, value in members.object("bindings").items()
    }
    metadata = _open_object(members, "metadata")
    if "name" in metadata:
        identifier(f"{path}: metadata: name", metadata["name"])
    return Directory(
        components=_parse_components(path, members.object("components"), objects),
        objects=objects,
        bindings=bindings,
        uses=_parse_uses(path, members.array("uses"), objects, bindings),
        files=files,
        metadata=metadata,
        provenance=_open_object(members, "provenance"),
    )


def _key(where: str, name: str) -> str:
    return identifier(f"{where}: a member name", name)


def _open_object(members: Members, name: str) -> dict[str, Any]:
    """An optional object whose content is free."""
    if name not in members:
        return {}
    value = members.object(name)
    try:
        require_shallow(value)
    except StrictJsonError as error:
        raise InputError(f"{members.where}: {name} {error}") from None
    return value


def _parse_files(path: str, records: list[Any]) -> tuple[FileRecord, ...]:
    if not records:
        raise InputError(f"{path}: files is empty; it must list at least the entry file")
    files: list[FileRecord] = []
    names: set[str] = set()
    total = 0
    for index, value in enumerate(records):
        members = Members(f"{path}: files[{index}]", value, ("path", "payload_bytes"))
        name = members.value("path")
        if index == 0 and name is not None:
            raise InputError(f"{members.where}: path must be null for the entry file, found {shown(name)}")
        if index > 0:
            name = _sibling_name(members)
            if name in names:
                raise InputError(f"{members.where}: path {name} is listed twice")
            names.add(name)
        files.append(FileRecord(name, members.integer("payload_bytes", minimum=1)))
        total += files[-1].payload_bytes
        if total > U64_MAX:
            raise InputError(f"{members.where}: the payload_bytes sum up to {total}, beyond 2^64-1")
    return tuple(files)


def _sibling_name(members: Members) -> str:
    name = members.value("path")
    is_plain = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\")
    if not is_plain or not name.isprintable() or len(name.encode()) > MAX_FILE_NAME_BYTES:
        raise InputError(
            f"{members.where}: path must be the plain, printable name of a file beside the entry file, of at most "
            f"{MAX_FILE_NAME_BYTES} bytes, found {shown(name)}"
        )
    return str(name)


def _parse_objects(path: str, records: list[Any], payload_bytes: int) -> dict[str, StoredObject]:
    if not records:
        raise InputError(f"{path}: objects is empty")
    objects: dict[str, StoredObject] = {}
    for index, value in enumerate(records):
        add_object(path, objects, _parse_object(f"{path}: objects[{index}]", path, value), payload_bytes)
    return objects


def _parse_object(where: str, path: str, value: Any) -> StoredObject:
    record = json_object(where, value)
    if isinstance(record.get("id"), str):
        where = f"{path}: object {plain(record['id'])}"
    kind = record.get("kind")
    if kind == "resource":
        members = Members(where, record, ("id", "kind", "encoding", "offset", "bytes"))
        return ResourceObject(
            id=members.identifier("id"),
            encoding=members.short_name("encoding"),
            offset=members.integer("offset"),
            size_bytes=members.integer("bytes", minimum=1),
        )
    if kind == "tensor":
        members = Members(where, record, ("id", "kind", "shape", "format", "layout", "offset", "bytes"), ("divisors",))
        return TensorObject(
            id=members.identifier("id"),
            shape=parse_shape(members),
            format=members.short_name("format"),
            layout=members.short_name("layout"),
            offset=members.integer("offset"),
            size_bytes=members.integer("bytes", minimum=1),
            divisors=members.integer("divisors", minimum=1) if "divisors" in members else 1,
        )
    if "kind" not in record:
        raise InputError(f"{where}: member 'kind' is missing")
    raise InputError(f"{where}: kind must be 'tensor' or 'resource', found {shown(kind)}")


def _parse_binding(where: str, value: Any, objects: Mapping[str, StoredObject]) -> Binding:
    members = Members(where, value, (), ("object", "parts"))
    if ("object" in members) == ("parts" in members):
        raise InputError(f"{where} must have either 'object' or 'parts'")
    if "object" in members:
        tensor = _tensor(where, members.identifier("object"), objects)
        return Binding((BindingPart(tensor.id, 0, tensor.elements),), is_whole=True)
    parts = [_parse_part(f"{where}: parts[{i}]", part, objects) for i, part in enumerate(members.array("parts"))]
    if not parts:
        raise InputError(f"{where}: parts is empty")
    return Binding(tuple(parts))


def _parse_part(where: str, value: Any, objects: Mapping[str, StoredObject]) -> BindingPart:
    members = Members(where, value, ("object", "range"))
    tensor = _tensor(where, members.identifier("object"), objects)
    bounds = members.array("range")
    if len(bounds) != 2:
        raise InputError(f"{where}: range must be [begin, end], found {shown(bounds)}")
    begin, end = (integer(f"{where}: range[{i}]", bound) for i, bound in enumerate(bounds))
    if not begin < end <= tensor.elements:
        raise InputError(
            f"{where}: range [{begin}, {end}] must not be empty and lie in the {tensor.elements} elements of object "
            f"{plain(tensor.id)}"
        )
    return BindingPart(tensor.id, begin, end)


def _tensor(where: str, object_id: str, objects: Mapping[str, StoredObject]) -> TensorObject:
    found = objects.get(object_id)
    if not isinstance(found, TensorObject):
        reason = "does not exist" if found is None else "is a resource, not a tensor"
        raise InputError(f"{where}: object {plain(object_id)} {reason}")
    return found


def _parse_uses(
    path: str, records: list[Any], objects: Mapping[str, StoredObject], bindings: Mapping[str, Binding]
) -> tuple[Use, ...]:
    uses: list[Use] = []
    seen: set[tuple[str, str]] = set()
    for index, value in enumerate(records):
        where = f"{path}: uses[{index}]"
        members = Members(where, value, ("parameter", "input"), ("activation_policy", "auxiliaries"))
        parameter, source = members.identifier("parameter"), members.identifier("input")
        if parameter not in bindings:
            raise InputError(f"{where}: parameter {plain(parameter)} is not bound")
        if (parameter, source) in seen:
            raise InputError(f"{where}: parameter {plain(parameter)} with input {plain(source)} is listed twice")
        seen.add((parameter, source))
        policy = members.value("activation_policy") if "activation_policy" in members else None
        if "activation_policy" in members and policy not in ACTIVATION_POLICIES:
            known = ", ".join(ACTIVATION_POLICIES)
            raise InputError(f"{where}: activation_policy must be one of {known}, found {shown(policy)}")
        roles = members.object("auxiliaries") if "auxiliaries" in members else {}
        auxiliaries = {
            _key(f"{where}: auxiliaries", role): _parse_binding(f"{where}: auxiliary {plain(role)}", binding, objects)
            for role, binding in roles.items()
        }
        uses.append(Use(parameter, source, policy, auxiliaries))
    return tuple(uses)


def _parse_components(path: str, records: dict[str, Any], objects: Mapping[str, StoredObject]) -> dict[str, Component]:
    if "text" not in records:
        found = ", ".join(map(plain, list(records)[:5])) or "none"
        raise InputError(f"{path}: components must have 'text', found {found}")
    components = {}
    for name, value in records.items():
        _key(f"{path}: components", name)
        where = f"{path}: component {plain(name)}"
        optional = ("target", "resources", *(("proposal",) if name == "text" else ()))
        members = Members(where, value, ("config",), optional)
        target = members.identifier("target") if "target" in members else None
        if target is not None and (target not in records or target == name):
            raise InputError(f"{where}: target {plain(target)} must be another component of this file")
        resources = members.object("resources") if "resources" in members else {}
        components[name] = Component(
            config=_open_object(members, "config"),
            target=target,
            resources={
                _key(f"{where}: resources", role): _resource_id(f"{where}: resource {plain(role)}", object_id, objects)
                for role, object_id in resources.items()
            },
            proposal=_parse_proposal(where, members.value("proposal")) if "proposal" in members else None,
        )
    return components


def _resource_id(where: str, value: Any, objects: Mapping[str, StoredObject]) -> str:
    object_id = identifier(where, value)
    found = objects.get(object_id)
    if not isinstance(found, ResourceObject):
        reason = "does not exist" if found is None else "is a tensor, not a resource"
        raise InputError(f"{where}: object {plain(object_id)} {reason}")
    return object_id


def _parse_proposal(where: str, value: Any) -> Proposal:
    members = Members(f"{where}: proposal", value, ("domain",), ("rows",))
    domain = members.value("domain")
    if domain not in ("full", "indexed"):
        raise InputError(f"{members.where}: domain must be 'full' or 'indexed', found {shown(domain)}")
    if (domain == "indexed") != ("rows" in members):
        raise InputError(f"{members.where}: rows must be given exactly for domain 'indexed', found domain {domain!r}")
    return Proposal(domain, members.integer("rows", minimum=1) if domain == "indexed" else None)
