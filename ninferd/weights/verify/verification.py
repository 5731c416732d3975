"""All checks of one model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ninferd.weights.artifact.directory import TensorObject
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.directory import read_directory
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import StoredMatrix
from ninferd.weights.verify.checkpoint import NamedMatrix, named_matrices, plain_matrices, tensors_by_matrix
from ninferd.weights.verify.container import check_auxiliaries, check_gaps, check_resources
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.model import check_frontend, check_parameters, directory_of, geometry_of
from ninferd.weights.verify.values import scan, scanned_bytes

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def verify_model(path: Path, *, with_values: bool, on_progress: OnProgress) -> Findings:
    """Check structure and completeness of an artifact or Hugging Face directory, and with ``with_values`` all values.

    Raises InputError if it cannot be opened at all.
    """
    findings = Findings()
    if path.is_dir():
        _verify_directory(path, findings, on_progress if with_values else None)
    else:
        _verify_artifact(path, findings, on_progress if with_values else None)
    return findings


def _verify_directory(path: Path, findings: Findings, on_progress: OnProgress | None) -> None:
    directory = read_directory(path)
    named: dict[str, NamedMatrix] = {}
    with findings.collected():
        source = HuggingFaceSource(directory)
        geometry = _check_model(source, findings)
        named = named_matrices(source, geometry, findings)
    for each in named.values():
        if each.matrix.activation_problem:
            findings.warn(each.matrix.activation_problem)
    _, others = tensors_by_matrix(directory.tensors, named)
    if on_progress is not None:
        matrices = [*(each.matrix for each in named.values()), *plain_matrices(others.values())]
        _scan_all(matrices, findings, on_progress)


def _verify_artifact(path: Path, findings: Findings, on_progress: OnProgress | None) -> None:
    """What can be said of the container does not depend on whether its model is known."""
    artifact = Artifact.open(path)
    with findings.collected():
        directory = directory_of(artifact)
        check_resources(artifact, directory.components, findings)
        check_auxiliaries(artifact, directory.uses, findings)
        _check_model(ArtifactSource(artifact), findings)
    matrices = []
    for object_id, entry in artifact.objects.items():  # those of no parameter too
        if isinstance(entry, TensorObject):
            with findings.collected():
                matrices.append(artifact.matrix(object_id))
    if on_progress is not None:
        _scan_all(matrices, findings, on_progress)
        with findings.collected():
            check_gaps(artifact, findings)


def _check_model(source: ModelSource, findings: Findings) -> ModelGeometry:
    geometry = geometry_of(source)
    check_parameters(source, geometry, findings)
    check_frontend(source, geometry, findings)
    return geometry


def _scan_all(matrices: list[StoredMatrix], findings: Findings, on_progress: OnProgress) -> None:
    total = sum(map(scanned_bytes, matrices))
    done = 0

    def advance(read: int) -> None:
        nonlocal done
        done += read
        on_progress(done, total)

    for matrix in matrices:
        with findings.collected():
            scan(matrix, findings, advance)
