"""What a model on disk is: everything that its directory or headers say, without reading a weight."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import ResourceObject, TensorObject
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.huggingface.directory import CheckpointDirectory, read_directory
from ninferd.weights.huggingface.safetensors import StoredTensor
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.parameters.geometry import ModelGeometry, MoeGeometry
from ninferd.weights.parameters.registry import parameters
from ninferd.weights.profiles import describe
from ninferd.weights.resources import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER, json_resource, text_resource
from ninferd.weights.source import ModelSource
from ninferd.weights.token_domain import read_token_domain
from ninferd.weights.verify.checkpoint import PLAIN_FORMATS, NamedMatrix, named_matrices, tensors_by_matrix
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.model import directory_of, geometry_of

_FRONTEND = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


@dataclass(frozen=True)
class FileRow:
    """One file of the model."""

    name: str
    size_bytes: int  # as it should be
    is_there: bool = True


@dataclass(frozen=True)
class TensorRow:
    """One stored tensor."""

    name: str
    shape: tuple[int, ...]
    format: str
    layout: str | None  # of an artifact
    size_bytes: int  # with its scales
    offset: int | None  # in the payload of an artifact
    component: str  # "other" if nothing refers to it
    parameters: tuple[str, ...] = ()  # whose values it has, as far as they are known
    auxiliary: str | None = None  # its role, if uses refer to it


@dataclass(frozen=True)
class Share:
    """How much of something there is."""

    tensors: int
    size_bytes: int


@dataclass
class Inspection:
    """What is known of a model. What could not be found out is None or empty, and a problem says why."""

    path: Path
    kind: str  # "artifact" or "hugging_face"
    name: str | None = None
    version: int | None = None  # of an artifact
    artifact_id: str | None = None
    model_id: str | None = None  # of version 1 and 2
    weights_id: str | None = None
    payload_start: int | None = None
    payload_bytes: int | None = None
    files: tuple[FileRow, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    components: dict[str, str] = field(default_factory=dict)  # id -> summary
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    weights_profile: str | None = None
    weights_summary: str | None = None
    resources: dict[str, int] = field(default_factory=dict)  # name -> bytes
    template: dict[str, Any] | None = None
    tokenizer: dict[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tensors: tuple[TensorRow, ...] = ()
    problems: tuple[str, ...] = ()  # that keep the model from being used

    def shares(self, kind: str) -> dict[str, Share]:
        """Tensors by ``format``, ``layout`` or ``component``, the largest share first."""
        found: dict[str, Share] = {}
        for row in self.tensors:
            name = getattr(row, kind)
            if name is not None:
                known = found.get(name, Share(0, 0))
                found[name] = Share(known.tensors + 1, known.size_bytes + row.size_bytes)
        return dict(sorted(found.items(), key=lambda item: -item[1].size_bytes))


def inspect_model(path: Path) -> Inspection:
    """Look at an artifact or a Hugging Face directory. Raises InputError if it cannot be opened at all."""
    findings = Findings()
    if path.is_dir():
        directory = read_directory(path)
        result = Inspection(path, "hugging_face", name=path.resolve().name)
        _add_checkpoint(result, directory, findings)
    else:
        artifact = Artifact.open(path)
        result = Inspection(path, "artifact")
        _add_container(result, artifact)
        with findings.collected():
            _add_directory(result, artifact)
        with findings.collected():
            _add_model(result, ArtifactSource(artifact), findings)
    result.problems = tuple(findings.errors)
    return result


def _add_container(result: Inspection, artifact: Artifact) -> None:
    result.version = artifact.version
    result.artifact_id = None if artifact.artifact_id is None else artifact.artifact_id.hex()
    result.model_id, result.weights_id = artifact.model_id, artifact.weights_id
    name = artifact.metadata.get("name", artifact.model_id)
    result.name = name if isinstance(name, str) else None
    result.payload_start, result.payload_bytes = artifact.payload_start, artifact.payload_bytes
    parts = [artifact.payload.part_path(index) for index in range(1, len(artifact.files))]
    result.files = (
        FileRow(artifact.path.name, artifact.entry_bytes),
        *(FileRow(path.name, artifact.payload.part_bytes(index), path.exists()) for index, path in enumerate(parts, 1)),
    )
    tensors = sum(isinstance(entry, TensorObject) for entry in artifact.objects.values())
    result.counts = {
        "objects": len(artifact.objects),
        "tensors": tensors,
        "resources": len(artifact.objects) - tensors,
        "bindings": len(artifact.bindings),
        "uses": len(artifact.uses),
    }
    result.metadata, result.provenance = artifact.metadata, artifact.provenance
    result.tensors = _object_rows(artifact, {}, {})


def _add_directory(result: Inspection, artifact: Artifact) -> None:
    """What components, bindings and uses say, of old versions by the names of their objects."""
    directory = directory_of(artifact)
    result.configs = {name: component.config for name, component in directory.components.items()}
    result.components = dict.fromkeys(directory.components, "")
    result.resources = {
        role: artifact.objects[object_id].size_bytes
        for component in directory.components.values()
        for role, object_id in component.resources.items()
    }
    names: dict[str, list[str]] = {}
    for name, binding in directory.bindings.items():
        for object_id in dict.fromkeys(part.object_id for part in binding.parts):
            names.setdefault(object_id, []).append(name)
    roles = {
        part.object_id: (role, use.parameter)
        for use in directory.uses
        for role, binding in use.auxiliaries.items()
        for part in binding.parts
    }
    result.tensors = _object_rows(artifact, names, roles)


def _object_rows(
    artifact: Artifact, names: Mapping[str, list[str]], roles: Mapping[str, tuple[str, str]]
) -> tuple[TensorRow, ...]:
    rows = []
    for entry in artifact.objects.values():
        if isinstance(entry, ResourceObject):
            continue
        role, user = roles.get(entry.id, (None, None))
        bound = tuple(names.get(entry.id, ()))
        owner = bound[0] if bound else user
        rows.append(
            TensorRow(
                name=entry.id,
                shape=entry.shape,
                format=entry.format,
                layout=entry.layout,
                size_bytes=entry.size_bytes,
                offset=entry.offset,
                component=owner.split("/", 1)[0] if owner else "other",
                parameters=bound,
                auxiliary=role,
            )
        )
    return tuple(rows)


def _add_checkpoint(result: Inspection, directory: CheckpointDirectory, findings: Findings) -> None:
    files = sorted({tensor.span.path for tensor in directory.tensors.values()})
    result.files = tuple(FileRow(file.name, file.stat().st_size) for file in files)
    result.counts = {"tensors": len(directory.tensors)}
    result.configs = {"config.json": directory.config}
    result.tensors = tuple(_plain_row(name, tensor) for name, tensor in directory.tensors.items())
    paths = {name: directory.path / name for name in _FRONTEND}
    result.resources = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    with findings.collected():
        source = HuggingFaceSource(directory)
        geometry = _add_model(result, source, findings)
        if geometry is not None:
            named = named_matrices(source, geometry, findings)
            parts, others = tensors_by_matrix(directory.tensors, named)
            matrices = (_matrix_row(each, parts[name]) for name, each in named.items())
            result.tensors = (*matrices, *(_plain_row(name, tensor) for name, tensor in others.items()))


def _matrix_row(named: NamedMatrix, parts: list[StoredTensor]) -> TensorRow:
    """One row for the values or codes and all their scales, under the name of the former."""
    spans = next(iter(named.matrix.planes.values())).spans
    return TensorRow(
        name=next(tensor.name for tensor in parts if tensor.span in spans),
        shape=(named.matrix.rows, named.matrix.columns),
        format=named.matrix.format,
        layout=None,
        size_bytes=sum(tensor.span.size_bytes for tensor in parts),
        offset=None,
        component=named.parameters[0].split("/", 1)[0],
        parameters=tuple(named.parameters),
    )


def _plain_row(canonical_name: str, tensor: StoredTensor) -> TensorRow:
    component = {"mtp": "mtp", "visual": "vision"}.get(canonical_name.split(".", 1)[0], "text")
    return TensorRow(tensor.name, tensor.shape, _plain(tensor.dtype), None, tensor.span.size_bytes, None, component)


def _plain(dtype: str) -> str:
    return PLAIN_FORMATS[dtype][0] if dtype in PLAIN_FORMATS else dtype


def _add_model(result: Inspection, source: ModelSource, findings: Findings) -> ModelGeometry | None:
    """Geometry, formats of the text model, frontend files."""
    with findings.collected():
        _add_frontend(result, source)
    geometry = None
    with findings.collected():
        geometry = geometry_of(source)
        result.components |= component_summaries(geometry)
        missing = [each.name for each in parameters(geometry) if not source.has(each.name)]
        if geometry.text.tie_word_embeddings and "text/output_head" in missing:
            missing.remove("text/output_head")
        if missing:
            raise InputError(f"{source.path}: {len(missing)} of its parameters are missing, the first is {missing[0]}")
        description = describe(source, text_plan(geometry.text))
        result.weights_profile, result.weights_summary = description.name, description.summary()
    return geometry


def component_summaries(geometry: ModelGeometry) -> dict[str, str]:
    """One line for each component."""
    text = geometry.text
    attention = text.layer_types.count("full_attention")
    width = (
        f"{text.feed_forward.experts} experts of {text.feed_forward.intermediate_size}, "
        f"{text.feed_forward.experts_per_token} per token"
        if isinstance(text.feed_forward, MoeGeometry)
        else f"feed-forward {text.feed_forward.intermediate_size}"
    )
    found = {
        "text": f"{len(text.layer_types)} layers ({attention} attention, {len(text.layer_types) - attention} gated "
        f"delta), hidden {text.hidden_size}, {width}, vocabulary {text.vocab_size}"
        + (", head tied to the embedding" if text.tie_word_embeddings else "")
    }
    if geometry.vision is not None:
        found["vision"] = f"{geometry.vision.depth} layers, hidden {geometry.vision.hidden_size}"
    if geometry.has_mtp:
        found["mtp"] = "1 layer"
    for draft in geometry.drafts:
        taps = ", ".join(map(str, draft.target_layer_ids))
        found[draft.kind] = f"{len(draft.layer_types)} layers on the states after layers {taps}"
    if geometry.proposal_rows is not None:
        found["proposal"] = f"draft head of {geometry.proposal_rows} rows"
    return found


def _add_frontend(result: Inspection, source: ModelSource) -> None:
    template = text_resource(source, CHAT_TEMPLATE)
    if template is not None:
        raw = template.encode()
        digest = hashlib.sha256(raw).hexdigest()
        result.template = {"bytes": len(raw), "lines": template.count("\n") + 1, "sha256": digest}
    if source.resource(TOKENIZER) is not None:
        domain = read_token_domain(source)
        generation = json_resource(source, GENERATION_CONFIG) or {}
        result.tokenizer = {
            "tokens": domain.count,
            "added": len(domain.added),
            "special": sum(token.special for token in domain.added),
            "eos_token_id": generation.get("eos_token_id"),
        }
