"""What an artifact holds, as lines of text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ninferd.weights.artifact.plan import Plan
from ninferd.weights.convert.inventory import Inventory

_ROW = "{:<10} {:<22} {:>8} {:>11} {:>15}"


def inventory_lines(inventory: Inventory) -> Iterator[str]:
    """Objects, parameters and bytes by component and format, then the totals."""
    objects: Counter[tuple[str, str]] = Counter()
    parameters: Counter[tuple[str, str]] = Counter()
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for weight in inventory.weights:
        key = weight.members[0].component, weight.record.format
        objects[key] += 1
        parameters[key] += len(weight.members)
        sizes[key] += weight.record.size_bytes
    yield _ROW.format("component", "format", "objects", "parameters", "bytes")
    components = list(dict.fromkeys(component for component, _ in sizes))
    for key in sorted(sizes, key=lambda key: components.index(key[0])):
        yield _ROW.format(*key, objects[key], parameters[key], f"{sizes[key]:,}")
    contents = inventory.contents
    divisors = len(inventory.auxiliaries)
    if divisors:
        yield _ROW.format("divisors", "fp32", divisors, "", f"{4 * divisors:,}")
    resources = len(contents.objects) - len(inventory.weights) - divisors
    resource_bytes = sum(entry.size_bytes for entry in contents.objects[:resources])
    yield _ROW.format("resources", "raw bytes", resources, "", f"{resource_bytes:,}")
    yield f"{len(contents.objects)} objects, {len(contents.bindings)} bindings, {len(contents.uses)} uses"


def file_lines(name: str, plan: Plan) -> Iterator[str]:
    """The exact size of every file."""
    names = [name, *(str(record.name) for record in plan.directory.files[1:])]
    yield f"payload starts at byte {plan.payload_start:,}"
    for each, size in zip(names, plan.file_bytes, strict=True):
        yield f"{each}: {size:,} bytes"
    if len(names) > 1:
        yield f"{len(names)} files: {plan.total_bytes:,} bytes"
