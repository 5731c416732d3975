"""A conversion from beginning to end: the artifact, its checksum and its report, or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninferd import __version__
from ninferd.config.atomic import write_atomically
from ninferd.errors import InputError
from ninferd.weights.artifact.publish import require_replaceable
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.convert.blocks import BlockReader
from ninferd.weights.convert.encoding import BlockEncoder
from ninferd.weights.convert.pipeline import OnProgress, Pipeline, Written
from ninferd.weights.convert.request import Prepared
from ninferd.weights.formats.encoders import Encoders, Nvfp4Method
from ninferd.weights.loading.files import OpenFiles

HASH_BYTES = 8 << 20


@dataclass(frozen=True)
class Output:
    """How and where an artifact is written."""

    path: Path
    encoders: Encoders
    method: Nvfp4Method = "max_abs"
    threads: int = 1
    max_file_bytes: int | None = None
    artifact_id: bytes | None = None  # random without one
    overwrite: bool = False


def convert(prepared: Prepared, output: Output, on_written: OnProgress, on_hashed: OnProgress) -> dict[str, Any]:
    """Write the artifact, ``PATH.sha256`` and ``PATH.conversion.json``; returns the report.

    Whatever ends it before the artifact is complete, KeyboardInterrupt included, leaves no file behind. InputError
    names file and tensor; also if the disk has too little room or the artifact exists and is not to be overwritten.
    """
    started = time.monotonic()
    require_replaceable(output.path)
    sidecars = (_checksums_path(output.path), _report_path(output.path))
    for sidecar in sidecars:  # hours before they are written
        require_replaceable(sidecar)
    contents = prepared.inventory.contents
    writer = ArtifactWriter(
        output.path,
        contents,
        artifact_id=output.artifact_id,
        max_file_bytes=output.max_file_bytes,
        overwrite=output.overwrite,
    )
    resources = {
        object_id: prepared.frontend[role]
        for component in contents.components.values()
        for role, object_id in component.resources.items()
    }
    with writer, OpenFiles() as files:
        encoder = BlockEncoder(BlockReader(files), output.encoders, output.method)
        pipeline = Pipeline(
            writer, prepared.inventory, prepared.sources, prepared.runs, encoder, output.threads, on_written
        )
        written = pipeline.run(resources)
        for sidecar in sidecars:
            _remove(sidecar)
        writer.publish()
    names = [output.path.name, *(str(record.name) for record in writer.plan.directory.files[1:])]
    _check(output.path)
    checksums = _checksums([output.path.with_name(name) for name in names], on_hashed)
    _write_text(_checksums_path(output.path), "".join(f"{digest}  {name}\n" for name, digest in checksums.items()))
    sizes = dict(zip(names, writer.plan.file_bytes, strict=True))
    report = {
        "converter": f"ninferd {__version__}",
        "artifact_id": writer.artifact_id.hex(),
        **contents.metadata,
        **{key: value for key, value in contents.provenance.items() if key != "converter"},
        "files": [{"name": name, "bytes": sizes[name], "sha256": checksums[name]} for name in names],
        "seconds": round(time.monotonic() - started, 1),
        "notes": list(prepared.notes),
        "objects": [_object_report(each, output.method) for each in written],
    }
    _write_text(_report_path(output.path), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return report


def _check(path: Path) -> None:
    """Reopen what was written with the strict reader and look at every tensor's record."""
    artifact = Artifact.open(path)
    for binding in artifact.bindings.values():
        for part in binding.parts:
            artifact.planes(artifact.tensor(part.object_id))


def _object_report(written: Written, method: Nvfp4Method) -> dict[str, Any]:
    record, choices = written.weight.record, written.weight.choices
    report: dict[str, Any] = {
        "id": record.id,
        "parameters": [member.name for member in written.weight.members],
        "shape": list(record.shape),
        "format": record.format,
        "bytes": record.size_bytes,
    }
    if written.weight.members[0].direct is not None:
        return report | {"method": "direct"}
    deviation = written.deviation
    is_nvfp4 = record.format == "nvfp4"
    return report | {
        "method": "kept" if choices[0].is_imported else f"encoded, {method}" if is_nvfp4 else "encoded",
        "sources": list(written.sources),
        "source_formats": list(written.source_formats),
        "relative_rms_error": float(f"{deviation.relative_rms:.4g}"),
        "compared_rows": deviation.rows,
    }


def _checksums(paths: list[Path], on_hashed: OnProgress) -> Mapping[str, str]:
    total = sum(path.stat().st_size for path in paths)
    done = 0
    found = {}
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(HASH_BYTES):
                digest.update(chunk)
                done += len(chunk)
                on_hashed(done, total)
        found[path.name] = digest.hexdigest()
    return found


def _write_text(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode(errors="surrogateescape"), 0o666 & ~_umask())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be removed: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _checksums_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _report_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.conversion.json")
