"""Whether everything that the model's geometry needs is there, and fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninferd.errors import InputError
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.legacy import LegacyView, legacy_view
from ninferd.weights.parameters.registry import Parameter, parameters
from ninferd.weights.resources import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    json_resource,
    place,
    text_resource,
)
from ninferd.weights.source import ModelSource
from ninferd.weights.token_domain import TokenDomain, read_token_domain
from ninferd.weights.verify.findings import Findings

_OPTIONAL = ("vision", "mtp")
_NOT_SERVED = "the model can be loaded but not be talked to"
_PREPROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")


def geometry_of(source: ModelSource) -> ModelGeometry:
    """Geometry of all components that the source has. InputError naming file and key if it is impossible.

    A directory may announce a vision tower or MTP in ``config.json`` without a weight of it; that counts as absent.
    """
    if not isinstance(source, ArtifactSource):
        where = str(source.path / "config.json")
        announced = model_geometry(component_configs(source.config, where), where)
        there = {each.component for each in parameters(announced) if source.has(each.name)}
        return announced.without({*_OPTIONAL} - there)
    artifact = source.artifact
    components = directory_of(artifact).components
    proposal = components["text"].proposal
    configs = {name: component.config for name, component in components.items()}
    return model_geometry(configs, str(artifact.path), None if proposal is None else proposal.rows)


def directory_of(artifact: Artifact) -> Artifact | LegacyView:
    """Components, bindings and uses, whatever the version. InputError for a model that is unknown here."""
    if artifact.model_id is None:
        return artifact
    return legacy_view(artifact.model_id, artifact.objects, str(artifact.path))


def check_parameters(source: ModelSource, geometry: ModelGeometry, findings: Findings) -> None:
    """Every parameter must be there in its shape, and no other."""
    needed = parameters(geometry)
    for parameter in needed:
        with findings.collected():
            _resolve(source, parameter, geometry)
    with findings.collected():
        source.require_no_others(frozenset(parameter.name for parameter in needed))


def _resolve(source: ModelSource, parameter: Parameter, geometry: ModelGeometry) -> None:
    is_tied = parameter.name == "text/output_head" and geometry.text.tie_word_embeddings
    if is_tied and not source.has(parameter.name):
        return
    if parameter.direct is None:
        source.matrix(parameter.name, *parameter.shape)
    else:
        source.require_array(parameter.name, parameter.shape)


def check_frontend(source: ModelSource, geometry: ModelGeometry, findings: Findings) -> None:
    """Tokenizer, template, ids of generation defaults and draft head, and sizes of the picture preprocessors.

    What a daemon would refuse for, but another program may bring itself, is a warning.
    """
    with findings.collected():
        if source.resource(TOKENIZER) is None:
            findings.warn(f"{place(source, TOKENIZER)}: is missing; {_NOT_SERVED}")
        else:
            domain = read_token_domain(source)
            _check_stop_ids(source, domain, findings)
            _check_proposal(source, geometry, domain)
    with findings.collected():
        _check_template(source, findings)
    if geometry.vision is not None:
        for name in _PREPROCESSORS:
            with findings.collected():
                _check_preprocessor(source, name, geometry)


def _check_template(source: ModelSource, findings: Findings) -> None:
    """There must be one, in UTF-8; whether it can be compiled is seen where it is used."""
    if text_resource(source, CHAT_TEMPLATE) is not None:
        return
    if not isinstance((json_resource(source, TOKENIZER_CONFIG) or {}).get("chat_template"), str):
        findings.warn(f"{place(source, CHAT_TEMPLATE)}: is missing; {_NOT_SERVED} without template.file")


def _check_stop_ids(source: ModelSource, domain: TokenDomain, findings: Findings) -> None:
    """Those of the generation defaults, else of the configuration, as the daemon takes them."""
    text = source.config.get("text_config")
    places = (
        (place(source, GENERATION_CONFIG), json_resource(source, GENERATION_CONFIG) or {}),
        (place(source, "config.json"), source.config),
        (place(source, "config.json"), text if isinstance(text, dict) else {}),
    )
    for where, table in places:
        found = table.get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < domain.count:
                raise InputError(f"{where}: eos_token_id {token_id!r} is none of the {domain.count} token ids")
        if ids:
            return
    findings.warn(
        f"{places[0][0]}: neither it nor the configuration names an eos_token_id, with which answers end; {_NOT_SERVED}"
    )


def _check_proposal(source: ModelSource, geometry: ModelGeometry, domain: TokenDomain) -> None:
    if geometry.proposal_rows is None:
        return
    name = "proposal/token_ids"
    ids = source.array(name, (geometry.proposal_rows,))
    unique = np.unique(ids)
    if len(unique) < len(ids) or unique[0] < 0 or unique[-1] >= domain.count:
        raise InputError(
            f"{source.path}: parameter {name}: its {len(ids)} ids must be different and of 0 to {domain.count - 1}; "
            f"{len(unique)} are different, from {unique[0]} to {unique[-1]}"
        )


def _check_preprocessor(source: ModelSource, name: str, geometry: ModelGeometry) -> None:
    content: dict[str, Any] | None = json_resource(source, name)
    vision = geometry.vision
    if content is None or vision is None:
        return
    for key, expected in (
        ("patch_size", vision.patch_size),
        ("temporal_patch_size", vision.temporal_patch_size),
        ("merge_size", vision.spatial_merge_size),
    ):
        if key in content and content[key] != expected:
            raise InputError(
                f"{place(source, name)}: {key} must be {expected} as in the vision tower, found {content[key]!r}"
            )
