"""``ninferd model inspect``: what a model on disk holds, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ninferd.errors import one_line

if TYPE_CHECKING:
    from ninferd.weights.verify.inspection import Inspection, TensorRow

_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")  # between dots or slashes


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to ``ninferd model``."""
    parser = commands.add_parser(
        "inspect",
        help="show components, tensors, formats and sizes of a model",
        usage="%(prog)s PATH [--tensors | --json]",
        description="Reads the directory of an artifact, or the headers of a Hugging Face directory, and no weight. "
        "Parts of an artifact need not be there.",
    )
    parser.add_argument("path", metavar="PATH", help=".ninfer file, Hugging Face directory or embedded:NAME")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--tensors", action="store_true", help="a line for every tensor, not for every kind")
    output.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.set_defaults(handler=run_inspect)


def run_inspect(args: argparse.Namespace) -> int:
    """0: shown, also if something keeps the model from being used; that is then said on standard error."""
    from ninferd.cli.model_path import model_path
    from ninferd.weights.verify.inspection import inspect_model

    inspection = inspect_model(model_path(args.path))
    if args.json:
        print(json.dumps(as_json(inspection), indent=1))
        return 0
    print(*lines(inspection, every_tensor=args.tensors), sep="\n")
    for problem in inspection.problems:
        print(one_line(f"problem: {problem}"), file=sys.stderr)
    return 0


def as_json(inspection: Inspection) -> dict[str, Any]:
    """The whole inspection; sizes in bytes."""
    return {
        "path": str(inspection.path),
        "kind": inspection.kind,
        "name": inspection.name,
        "container": None
        if inspection.version is None
        else {
            "version": inspection.version,
            "artifact_id": inspection.artifact_id,
            "model_id": inspection.model_id,
            "weights_id": inspection.weights_id,
            "payload_start": inspection.payload_start,
            "payload_bytes": inspection.payload_bytes,
        },
        "files": [
            {"name": file.name, "bytes": file.size_bytes, "is_there": file.is_there} for file in inspection.files
        ],
        "counts": inspection.counts,
        "components": {
            name: {"summary": summary, "config": inspection.configs.get(name)}
            for name, summary in inspection.components.items()
        },
        **{
            heading: {
                name: {"tensors": share.tensors, "bytes": share.size_bytes}
                for name, share in inspection.shares(kind).items()
            }
            for kind, heading in (("format", "formats"), ("layout", "layouts"), ("component", "component_sizes"))
        },
        "weights_profile": inspection.weights_profile,
        "weights_summary": inspection.weights_summary,
        "resources": inspection.resources,
        "chat_template": inspection.template,
        "tokenizer": inspection.tokenizer,
        "metadata": inspection.metadata,
        "provenance": inspection.provenance,
        "tensors": [
            {
                "name": row.name,
                "shape": list(row.shape),
                "format": row.format,
                "layout": row.layout,
                "bytes": row.size_bytes,
                "offset": row.offset,
                "parameters": list(row.parameters),
                "auxiliary": row.auxiliary,
            }
            for row in inspection.tensors
        ],
        "problems": list(inspection.problems),
    }


def lines(inspection: Inspection, *, every_tensor: bool) -> Iterator[str]:
    """The table for people."""
    sections = (
        _container(inspection),
        _components(inspection),
        _weights(inspection),
        _frontend(inspection),
        _every_tensor(inspection) if every_tensor else _kinds_of_tensors(inspection),
    )
    for section in sections:
        yield from map(one_line, section)


def _container(inspection: Inspection) -> Iterator[str]:
    version = f"artifact, version {inspection.version}" if inspection.version else "Hugging Face directory"
    yield f"{inspection.path}: {version}"
    if inspection.name is not None:
        yield _field("name", inspection.name)
    if inspection.weights_id is not None:
        yield _field("weights id", inspection.weights_id)
    if inspection.artifact_id is not None:
        yield _field("id", inspection.artifact_id)
    for file in inspection.files:
        yield _field("file", f"{file.name}: {_bytes(file.size_bytes)}{'' if file.is_there else ', MISSING'}")
    if inspection.payload_start is not None and inspection.payload_bytes is not None:
        yield _field("payload", f"{_bytes(inspection.payload_bytes)} from byte {inspection.payload_start:,}")
    yield _field(
        "holds", ", ".join(f"{count} {noun[: -1 if count == 1 else None]}" for noun, count in inspection.counts.items())
    )
    for key in ("converter", "recipe", "upgraded_from"):
        if key in inspection.provenance:
            yield _field(key.replace("_", " "), json.dumps(inspection.provenance[key], ensure_ascii=False).strip('"'))


def _components(inspection: Inspection) -> Iterator[str]:
    shares = inspection.shares("component")
    for name in dict.fromkeys((*inspection.components, *shares)):
        summary = inspection.components.get(name, "")
        size = f"{_bytes(shares[name].size_bytes)} in {_counted(shares[name].tensors)}" if name in shares else ""
        yield _field(name, "; ".join(part for part in (summary, size) if part))


def _weights(inspection: Inspection) -> Iterator[str]:
    if inspection.weights_summary is not None:
        yield _field("weights", f"{inspection.weights_profile}: {inspection.weights_summary}")
    for kind in ("format", "layout"):
        shares = inspection.shares(kind)
        if shares:
            yield ""
            yield f"{kind:<28} {'tensors':>8} {'bytes':>16}"
            for name, share in shares.items():
                yield f"{name:<28} {share.tensors:>8} {share.size_bytes:>16,}"


def _frontend(inspection: Inspection) -> Iterator[str]:
    yield ""
    for name, size in inspection.resources.items():
        yield _field(name, f"{size:,} bytes", width=28)
    if inspection.template is not None:
        found = inspection.template
        yield _field("chat template", f"{found['lines']} lines, SHA-256 {found['sha256'][:16]}…", width=28)
    if inspection.tokenizer is not None:
        found = inspection.tokenizer
        text = f"{found['tokens']} tokens, {found['added']} of them added ({found['special']} special)"
        yield _field("tokenizer", f"{text}, ends at {json.dumps(found['eos_token_id'])}", width=28)


def _kinds_of_tensors(inspection: Inspection) -> Iterator[str]:
    """Tensors that differ in their numbers only, such as those of different layers, are one line."""
    kinds: dict[tuple[str, tuple[int, ...], str], list[TensorRow]] = {}
    for row in inspection.tensors:
        kinds.setdefault((_pattern(row), row.shape, row.format), []).append(row)
    yield ""
    yield f"{'count':>6} {'bytes':>16} {'format':<20} {'shape':<18} tensor"
    for (pattern, shape, format), rows in kinds.items():
        size = sum(row.size_bytes for row in rows)
        yield f"{len(rows):>6} {size:>16,} {format:<20} {list(shape)!s:<18} {pattern}"


def _every_tensor(inspection: Inspection) -> Iterator[str]:
    yield ""
    yield f"{'offset':>16} {'bytes':>14} {'format':<20} {'shape':<18} tensor"
    for row in inspection.tensors:
        offset = "" if row.offset is None else f"{row.offset:,}"
        named = _joined(row.parameters) or row.auxiliary or ""
        text = f"{row.name} = {named}" if named and named != row.name else row.name
        yield f"{offset:>16} {row.size_bytes:>14,} {row.format:<20} {list(row.shape)!s:<18} {text}"


def _pattern(row: TensorRow) -> str:
    """What a tensor is, with ``*`` for the numbers of layers and experts."""
    if row.parameters:
        return _joined(tuple(dict.fromkeys("/".join(_starred(name.split("/"))) for name in row.parameters)))
    if row.auxiliary is not None:
        return row.auxiliary
    return _NUMBER.sub("*", row.name)


def _starred(parts: list[str]) -> list[str]:
    return ["*" if part.isdecimal() else part for part in parts]


def _joined(names: tuple[str, ...]) -> str:
    """``a/b/x`` and ``a/b/y`` as ``a/b/{x,y}``."""
    leaves: dict[str, list[str]] = {}
    for name in names:
        parent, slash, leaf = name.rpartition("/")
        leaves.setdefault(parent + slash, []).append(leaf)
    return " ".join(
        parent + (found[0] if len(found) == 1 else "{" + ",".join(found) + "}") for parent, found in leaves.items()
    )


def _field(name: str, text: str, width: int = 12) -> str:
    return f"  {name:<{width}} {text}".rstrip()


def _counted(tensors: int) -> str:
    return f"{tensors} tensor{'' if tensors == 1 else 's'}"


def _bytes(count: int) -> str:
    from ninferd.daemon.units import format_bytes

    return f"{format_bytes(count)} ({count:,} bytes)" if count >= 1024 else f"{count} bytes"
