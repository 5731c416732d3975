"""A ``.ninfer`` artifact as a source of a model: the container's objects under the registry's parameter names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Binding, BindingPart, Use
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.text import plain
from ninferd.weights.formats.minifloat import float32_of_bf16
from ninferd.weights.formats.registry import BF16, FP32, INT32
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.huggingface_config import huggingface_config
from ninferd.weights.parameters.legacy import LegacyView, legacy_view
from ninferd.weights.small_values import require_finite
from ninferd.weights.stored import RowRun, StoredMatrix, joined

ACTIVATION_DIVISOR = "activation_input_divisor"
_CONFIGURED = ("text", "mtp")  # what the text model depends on; other components may be of kinds yet unknown
_OTHER_ROLES = {
    "hadamard_signs": "a signed Hadamard transform of its input",
    "input_columns": "a permutation of its input columns",
}


@dataclass(frozen=True)
class ArtifactView:
    """What the model layer needs of a container, whatever its version."""

    components: Mapping[str, Mapping[str, Any]]  # id -> config
    resources: Mapping[str, str]  # Hugging Face name -> object
    bindings: Mapping[str, Binding]
    uses: Mapping[str, tuple[Use, ...]]  # by parameter


class ArtifactSource:
    """One artifact. Opening it reads the directory; objects of components that nobody asks for are never looked at."""

    def __init__(self, artifact: Artifact) -> None:
        """Raises InputError if the configuration of the text component cannot be that of a model."""
        self.artifact = artifact
        self._view = _view_of(artifact)
        self._matrices: dict[tuple[str, float | None], StoredMatrix] = {}
        configs = {name: self._view.components[name] for name in _CONFIGURED if name in self._view.components}
        self._config = _configuration(configs, str(artifact.path))

    @classmethod
    def open(cls, path: Path) -> ArtifactSource:
        """Raises InputError naming the file and what is wrong with it."""
        return cls(Artifact.open(path))

    @property
    def path(self) -> Path:
        return self.artifact.path

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    @property
    def components(self) -> tuple[str, ...]:
        """Ids of the components that are stored."""
        return tuple(self._view.components)

    def resource(self, name: str) -> bytes | None:
        object_id = self._view.resources.get(name)
        return None if object_id is None else self.artifact.resource(object_id)

    def has(self, parameter: str) -> bool:
        return parameter in self._view.bindings

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        """The rows of a parameter.

        Raises InputError if its binding does not give exactly ``rows x columns``, takes parts of rows, or needs a
        transformation of its input that is not implemented.
        """
        binding = self._binding(parameter, (rows, columns))
        divisor = self._activation_divisor(parameter)
        runs = joined(tuple(self._run(parameter, part, columns, divisor) for part in binding.parts))
        for run in runs:
            if run.matrix.format == INT32:
                raise InputError(f"{self._where(parameter)}: is stored as {INT32}; a matrix of weights is needed")
        return runs

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        self._direct_parts(parameter, shape)

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        pieces = []
        for part, matrix in self._direct_parts(parameter, shape):
            values = _direct_values(matrix).reshape(-1)[part.begin : part.end]
            where = f"{self._where(parameter)}: object {plain(part.object_id)}"
            require_finite(values, where, part.begin)
            pieces.append(values)
        dtype = np.int32 if _is_ids(parameter) else np.float32
        return np.concatenate(pieces).astype(dtype, copy=False).reshape(shape)

    def require_no_others(self, known: frozenset[str]) -> None:
        """InputError naming parameters of the components in ``known`` that are not in it; others stay unread."""
        loaded = {name.split("/", 1)[0] for name in known}
        rest = sorted(name for name in self._view.bindings if name.split("/", 1)[0] in loaded and name not in known)
        if rest:
            shown = ", ".join(map(plain, rest[:5])) + (f" and {len(rest) - 5} more" if len(rest) > 5 else "")
            raise InputError(f"{self.path}: unexpected parameters: {shown}")

    def stored_formats(self, component: str) -> Counter[str]:
        """Formats of the objects that a component's parameters are bound to, with their number."""
        ids = {
            part.object_id
            for name, binding in self._view.bindings.items()
            if name.split("/", 1)[0] == component
            for part in binding.parts
        }
        return Counter(self.artifact.tensor(object_id).format for object_id in ids)

    def _where(self, parameter: str) -> str:
        return f"{self.path}: parameter {plain(parameter)}"

    def _binding(self, parameter: str, shape: tuple[int, ...]) -> Binding:
        """The binding of a parameter that has as many elements as ``shape``, and the same shape if it is one object."""
        binding = self._view.bindings.get(parameter)
        if binding is None:
            raise InputError(f"{self._where(parameter)} {list(shape)} is missing")
        if binding.is_whole:
            found = self.artifact.tensor(binding.parts[0].object_id).shape
            if found != shape:
                raise InputError(
                    f"{self._where(parameter)}: object {plain(binding.parts[0].object_id)} has shape {list(found)}, "
                    f"expected {list(shape)}"
                )
        elif binding.elements != prod(shape):
            raise InputError(
                f"{self._where(parameter)}: its parts have {binding.elements} elements, expected {prod(shape)} for "
                f"{list(shape)}"
            )
        return binding

    def _direct_parts(self, parameter: str, shape: tuple[int, ...]) -> list[tuple[BindingPart, StoredMatrix]]:
        """The parts of a small parameter, of which each has a format that it can have."""
        wanted = (INT32,) if _is_ids(parameter) else (BF16, FP32)
        found = []
        for part in self._binding(parameter, shape).parts:
            format = self.artifact.tensor(part.object_id).format
            if format not in wanted:
                raise InputError(
                    f"{self._where(parameter)}: object {plain(part.object_id)} is stored as {format}, which this "
                    f"parameter cannot be; possible: {', '.join(wanted)}"
                )
            found.append((part, self._matrix(part.object_id)))
        return found

    def _run(self, parameter: str, part: BindingPart, columns: int, divisor: float | None) -> RowRun:
        matrix = self._matrix(part.object_id, divisor)
        if matrix.columns != columns:
            raise InputError(
                f"{self._where(parameter)}: object {plain(part.object_id)} has rows of {matrix.columns} columns, "
                f"expected {columns}"
            )
        if part.begin % columns or part.end % columns:
            raise InputError(
                f"{self._where(parameter)}: elements {part.begin} to {part.end} of object {plain(part.object_id)} are "
                f"not whole rows of {columns}; parts of rows are not supported"
            )
        return RowRun(matrix, part.begin // columns, part.end // columns)

    def _matrix(self, object_id: str, divisor: float | None = None) -> StoredMatrix:
        """One and the same value for the same object and divisor, so that neighbouring rows can be joined."""
        key = object_id, divisor
        if key not in self._matrices:
            plainly = self.artifact.matrix(object_id) if divisor is None else self._matrix(object_id)
            self._matrices[key] = plainly if divisor is None else replace(plainly, activation_divisor=divisor)
        return self._matrices[key]

    def _activation_divisor(self, parameter: str) -> float | None:
        """d_x of the parameter's own use; InputError for a use that cannot be honoured."""
        component = parameter.split("/", 1)[0]
        found: float | None = None
        for use in self._view.uses.get(parameter, ()):
            if component != "proposal" and use.input.split("/", 1)[0] != component:
                continue  # of another component, such as a drafter's use of the output head
            for role, binding in use.auxiliaries.items():
                if role != ACTIVATION_DIVISOR:
                    needs = _OTHER_ROLES.get(role, f"the unknown auxiliary {plain(role)}")
                    raise InputError(
                        f"{self._where(parameter)}: its use with {plain(use.input)} needs {needs}, which is not "
                        "available in this build"
                    )
                found = self._scalar(f"{self._where(parameter)}: {ACTIVATION_DIVISOR}", binding)
        return found

    def _scalar(self, where: str, binding: Binding) -> float:
        object_id = binding.parts[0].object_id
        tensor = self.artifact.tensor(object_id)
        if tensor.format != FP32 or tensor.shape != () or len(binding.parts) > 1:
            raise InputError(
                f"{where}: object {plain(object_id)} is {tensor.format} {list(tensor.shape)}; one {FP32} scalar is "
                "needed"
            )
        value = float(_direct_values(self._matrix(object_id))[0, 0])
        if not isfinite(value) or value <= 0:
            raise InputError(f"{where}: object {plain(object_id)} is {value}; a finite number above zero is needed")
        return value


def _is_ids(parameter: str) -> bool:
    return parameter.endswith("/token_ids")


def _direct_values(matrix: StoredMatrix) -> NDArray[Any]:
    """Values of a directly stored matrix, float32 or int32."""
    values = matrix.planes["values"].array()
    return float32_of_bf16(values) if matrix.format == BF16 else values


def _view_of(artifact: Artifact) -> ArtifactView:
    directory: Artifact | LegacyView = artifact
    if artifact.model_id is not None:  # versions 1 and 2
        directory = legacy_view(artifact.model_id, artifact.objects, str(artifact.path))
    uses: dict[str, tuple[Use, ...]] = {}
    for use in directory.uses:
        uses[use.parameter] = (*uses.get(use.parameter, ()), use)
    resources: dict[str, str] = {}
    for component in directory.components.values():
        for role, object_id in component.resources.items():
            resources.setdefault(role, object_id)
    configs = {name: component.config for name, component in directory.components.items()}
    return ArtifactView(configs, resources, directory.bindings, uses)


def _configuration(configs: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    model_geometry(configs, where)
    return huggingface_config(configs)
