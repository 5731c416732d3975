"""What every kind of model on disk offers: its configuration, its frontend files, its weights by parameter name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ninferd.weights.stored import RowRun


class ModelSource(Protocol):
    """One model, from a Hugging Face directory, an artifact or a generator. Opening it reads no weight.

    Parameter names and shapes are those of ``ninferd.weights.parameters`` (``text/layers/0/attention/query``). Every
    method raises InputError with one line that names file, object and what would be right.
    """

    @property
    def path(self) -> Path:
        """File or directory, for messages."""

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``, or its equivalent in the same spelling."""

    def resource(self, name: str) -> bytes | None:
        """A frontend file by its Hugging Face name (``tokenizer.json``, ``chat_template.jinja``); None if absent."""

    def has(self, parameter: str) -> bool:
        """Whether the source holds this parameter."""

    def matrix(self, parameter: str, rows: int, columns: int) -> tuple[RowRun, ...]:
        """The stored rows of a matrix parameter, in its order; ``rows`` and ``columns`` are what it must have."""

    def require_array(self, parameter: str, shape: tuple[int, ...]) -> None:
        """InputError unless the source has this small parameter in this shape; reads no value."""

    def array(self, parameter: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Values of a small parameter that is stored directly, as float32 (int32 for ids), in the registry's shape.

        InputError also for numbers that are not finite.
        """

    def require_no_others(self, known: frozenset[str]) -> None:
        """InputError naming weights that are neither in ``known`` nor of a component left out on purpose."""
