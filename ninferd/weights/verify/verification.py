"""All checks of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ninferd.weights.artifact.directory import TensorObject
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.directory import read_directory
from ninferd.weights.huggingface.safetensors import StoredTensor
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import StoredMatrix
from ninferd.weights.verify.checkpoint import named_matrices, plain_matrices, tensors_by_matrix
from ninferd.weights.verify.container import check_auxiliaries, check_gaps, check_resources
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.model import check_frontend, check_parameters, geometry_of
from ninferd.weights.verify.values import scan, scanned_bytes

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def verify_model(path: Path, *, with_values: bool, on_progress: OnProgress) -> Findings:
    """Check structure and completeness of an artifact or Hugging Face directory, and with ``with_values`` all values.

    Raises InputError if it cannot be opened at all.
    """
    findings = Findings()
    if path.is_dir():
        directory = read_directory(path)
        checkpoint = HuggingFaceSource(directory)
        geometry = _check_model(checkpoint, findings)
        matrices = _checkpoint_matrices(checkpoint, directory.tensors, geometry, findings)
        if with_values:
            _scan_all(matrices, findings, on_progress)
        return findings
    source = ArtifactSource.open(path)
    _check_model(source, findings)
    check_resources(source.artifact, findings)
    check_auxiliaries(source.artifact, findings)
    matrices = _artifact_matrices(source, findings)
    if with_values:
        _scan_all(matrices, findings, on_progress)
        with findings.collected():
            check_gaps(source.artifact, findings)
    return findings


def _check_model(source: ModelSource, findings: Findings) -> ModelGeometry | None:
    """The geometry, if the configuration gives one."""
    geometry = None
    with findings.collected():
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


def _artifact_matrices(source: ArtifactSource, findings: Findings) -> list[StoredMatrix]:
    """All tensors, those of no parameter too."""
    matrices = []
    for object_id, entry in source.artifact.objects.items():
        if isinstance(entry, TensorObject):
            with findings.collected():
                matrices.append(source.artifact.matrix(object_id))
    return matrices


def _checkpoint_matrices(
    source: HuggingFaceSource, tensors: Mapping[str, StoredTensor], geometry: ModelGeometry | None, findings: Findings
) -> list[StoredMatrix]:
    """Matrices in the layouts that they are stored in, and all other tensors of numbers as they are."""
    named = {} if geometry is None else named_matrices(source, geometry, findings)
    _, others = tensors_by_matrix(tensors, named)
    return [*(each.matrix for each in named.values()), *plain_matrices(others.values())]
