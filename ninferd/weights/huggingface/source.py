"""A Hugging Face directory as a source of a model's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.config.files import is_missing
from ninferd.errors import InputError
from ninferd.weights.artifact.text import plain, shown
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.huggingface.directory import CONFIG_NAME, CheckpointDirectory, read_directory
from ninferd.weights.huggingface.quantised import foreign_layout, is_stored, parts_of, stored_matrix
from ninferd.weights.json_file import read_bounded
from ninferd.weights.json_table import JsonTable
from ninferd.weights.parameters.component_configs import text_geometry, vision_geometry
from ninferd.weights.parameters.draft_config import draft_geometry
from ninferd.weights.parameters.geometry import TextGeometry
from ninferd.weights.parameters.huggingface_config import draft_kind, has_mtp, text_component, vision_component
from ninferd.weights.parameters.huggingface_draft import draft_component, draft_target
from ninferd.weights.parameters.huggingface_names import (
    Sources,
    SourceTensor,
    draft_sources,
    mtp_sources,
    text_sources,
    vision_sources,
)
from ninferd.weights.small_values import require_finite
from ninferd.weights.stored import RowRun, StoredMatrix

MAX_RESOURCE_BYTES = 256 << 20

_METHODS = ("compressed-tensors", "fp8", "modelopt")
_TENSOR_PREFIXES = {"mtp": "mtp.", "vision": "visual."}  # of components that may be left out
_IGNORED = (".k_scale", ".v_scale")  # of a quantised KV cache, which the configuration of the cache decides here


class HuggingFaceSource:
    """One directory. Opening it reads ``config.json`` and the headers of all shards; the parts of the configuration
    that a component depends on are read when the component is first asked for.
    """

    def __init__(self, directory: CheckpointDirectory) -> None:
        """Raises InputError if the configuration says that the weights are quantised by a method we cannot read."""
        self._directory = directory
        self._tensors = directory.tensors
        self._sources: dict[str, Mapping[str, Sources]] = {}
        self._matrices: dict[str, StoredMatrix] = {}
        _refuse_foreign_method(directory.config, self._config_path)
        self._draft = draft_kind(directory.config, str(self._config_path))  # None for a model that is no drafter

    @classmethod
    def open(cls, path: Path) -> HuggingFaceSource:
        """Raises InputError naming the file and what is wrong with it."""
        return cls(read_directory(path))

    @property
    def path(self) -> Path:
        return self._directory.path

    @property
    def config(self) -> dict[str, Any]:
        return self._directory.config

    def resource(self, name: str) -> bytes | None:
        path = self.path / name
        return None if is_missing(path) else read_bounded(path, MAX_RESOURCE_BYTES)

    def has(self, parameter: str) -> bool:
        return self._stored_source(parameter) is not None

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        """The rows of a parameter; raises InputError if it is missing, has another shape or an unreadable layout."""
        source = self._source(parameter)
        runs = self._runs(source)
        found = sum(run.rows for run in runs), source.columns
        if found != (rows, columns) or source.is_transposed:
            raise InputError(f"{self._config_path}: parameter {parameter} is {list(found)}, expected {[rows, columns]}")
        return runs

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        self._direct_runs(parameter, shape)

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        source, runs = self._direct_runs(parameter, shape)
        parts = []
        for run in runs:
            values = decode_rows(run.matrix, run.begin, run.end)
            first = run.begin * run.matrix.columns
            require_finite(values, f"{run.matrix.path}: {run.matrix.name}: parameter {parameter}", first)
            parts.append(values)
        joined: NDArray[np.float32] = np.concatenate(parts)
        return np.ascontiguousarray(joined.T if source.is_transposed else joined).reshape(shape)

    def require_no_others(self, known: frozenset[str]) -> None:
        """InputError naming tensors that belong to none of ``known``.

        What belongs to a component of which ``known`` has nothing is left out on purpose, as is the head of a model
        whose head is its embedding, and scales of a quantised KV cache.
        """
        taken = {part for name in known for part in self._parts(name)}
        components = {name.split("/", 1)[0] for name in known}
        left_out = tuple(prefix for component, prefix in _TENSOR_PREFIXES.items() if component not in components)
        if "text" in components and self._draft is None and self._text.tie_word_embeddings:
            left_out += ("lm_head.",)
        others = (name for name in self._tensors if name not in taken and not name.endswith(_IGNORED))
        rest = sorted(name for name in others if not name.startswith(left_out))
        if rest:
            named = ", ".join(map(plain, rest[:5])) + (f" and {len(rest) - 5} more" if len(rest) > 5 else "")
            raise InputError(f"{self.path}: unexpected tensors: {named}")

    @property
    def _config_path(self) -> Path:
        return self.path / CONFIG_NAME

    @cached_property
    def _text(self) -> TextGeometry:
        where = str(self._config_path)
        component = text_component(self.config, where)
        return text_geometry(JsonTable(component, where), has_mtp=has_mtp(self.config, where))

    def _parts(self, parameter: str) -> tuple[str, ...]:
        source = self._stored_source(parameter)
        return () if source is None else parts_of(source.name)

    def _source(self, parameter: str) -> SourceTensor:
        """The tensor that holds ``parameter``; InputError if there is none."""
        source = self._stored_source(parameter)
        if source is not None:
            return source
        alternatives = self._component(parameter).get(parameter, ())
        if not alternatives:
            raise InputError(f"{self.path}: parameter {plain(parameter)} is none of this model's")
        for alternative in alternatives:
            method = foreign_layout(self._tensors, alternative.name)
            if method is not None:
                raise InputError(
                    f"{self.path}: tensor {alternative.name} is quantised by {method}, which cannot be read"
                )
        named = " or ".join(f"{each.name} {list(each.shape)}" for each in alternatives)
        raise InputError(f"{self.path}: tensor {named} is missing")

    def _stored_source(self, parameter: str) -> SourceTensor | None:
        alternatives = self._component(parameter).get(parameter, ())
        return next((each for each in alternatives if is_stored(self._tensors, each.name)), None)

    def _runs(self, source: SourceTensor) -> tuple[RowRun, ...]:
        """One and the same matrix for the same tensor: rows of several parameters may follow each other in it."""
        if source.name not in self._matrices:
            self._matrices[source.name] = stored_matrix(self._tensors, source)
        return tuple(RowRun(self._matrices[source.name], begin, end) for begin, end in source.runs)

    def _direct_runs(self, parameter: str, shape: tuple[int, ...]) -> tuple[SourceTensor, tuple[RowRun, ...]]:
        """The tensor of a small parameter and the rows of it that have the values."""
        source = self._source(parameter)
        runs = self._runs(source)
        found = sum(run.rows for run in runs), source.columns
        found = found[::-1] if source.is_transposed else found
        if prod(found) != prod(shape) or (len(shape) == 2 and found != shape):
            raise InputError(f"{self._config_path}: parameter {parameter} is {list(found)}, expected {list(shape)}")
        return source, runs

    def _component(self, parameter: str) -> Mapping[str, Sources]:
        component = parameter.split("/", 1)[0]
        if component not in self._sources:
            self._sources[component] = dict(self._named(component))
        return self._sources[component]

    def _named(self, component: str) -> Iterator[tuple[str, Sources]]:
        where = str(self._config_path)
        if self._draft is not None:
            if component == self._draft:
                table = JsonTable(self.config, where)
                draft = JsonTable(draft_component(table, self._draft), where)
                yield from draft_sources(draft_geometry(draft, self._draft, draft_target(table)))
        elif component == "text":
            yield from text_sources(self._text)
        elif component == "mtp" and self._text.attention is not None:
            yield from mtp_sources(self._text)
        elif component == "vision":
            vision = vision_component(self.config, where)
            if vision is not None:
                tower = vision_geometry(JsonTable(vision, f"{where}: vision_config"), is_moe=self._text.is_moe)
                yield from vision_sources(tower, self._text.hidden_size)


def _refuse_foreign_method(config: Mapping[str, Any], path: Path) -> None:
    """A method of known layouts says nothing of a tensor; any other one would leave only riddles of missing tensors."""
    text = config.get("text_config")
    for table in (config, text if isinstance(text, dict) else {}):
        quantisation = table.get("quantization_config")
        if quantisation is None:
            continue
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
        if method is None and isinstance(quantisation, dict):
            continue
        if not isinstance(method, str) or not method.startswith(_METHODS):
            raise InputError(
                f"{path}: quantization_config: weights quantised by {shown(method)} cannot be read; "
                f"known methods: {', '.join(_METHODS)}"
            )
