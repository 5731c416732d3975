"""Checks of object records that all versions share."""

from __future__ import annotations

from math import prod

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import MAX_RANK, U64_MAX, StoredObject
from ninferd.weights.artifact.members import Members, integer
from ninferd.weights.artifact.text import plain


def parse_shape(members: Members) -> tuple[int, ...]:
    """The member ``shape``: up to 16 sizes of at least 1, whose product fits 64 bits; InputError otherwise."""
    sizes = members.array("shape")
    if len(sizes) > MAX_RANK:
        raise InputError(f"{members.where}: shape has {len(sizes)} sizes; at most {MAX_RANK} are possible")
    shape = tuple(integer(f"{members.where}: shape[{i}]", size, minimum=1) for i, size in enumerate(sizes))
    if prod(shape) > U64_MAX:
        raise InputError(f"{members.where}: shape {list(shape)} has {prod(shape)} elements, beyond 2^64-1")
    return shape


def add_object(path: str, objects: dict[str, StoredObject], entry: StoredObject, payload_bytes: int) -> None:
    """Put the next record into ``objects``; InputError if its id, order or range is wrong."""
    where = f"{path}: object {plain(entry.id)}"
    if entry.id in objects:
        raise InputError(f"{where} is listed twice")
    previous = next(reversed(objects.values()), None)
    previous_end = previous.offset + previous.size_bytes if previous else 0
    if entry.offset < previous_end:
        raise InputError(
            f"{where}: starts at offset {entry.offset}, before the end of the previous object at {previous_end}"
        )
    end = entry.offset + entry.size_bytes
    if end > payload_bytes:
        raise InputError(
            f"{where}: bytes {entry.offset} to {end} lie beyond the payload, which has {payload_bytes} bytes"
        )
    objects[entry.id] = entry
