"""Where the parameters of a conversion come from: the model, perhaps a full-precision one beside it, and a drafter."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from numpy.typing import NDArray

from ninferd.weights.convert.choices import Choice, wanted_formats
from ninferd.weights.convert.encoding import divisor_of
from ninferd.weights.convert.recipes import Recipe
from ninferd.weights.formats.registry import BF16, FP8_ROW, FP16, FP32, FP64, GROUPED, NVFP4
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import RowRun, joined

OUTPUT_HEAD = "text/output_head"
DRAFT_HEAD = "proposal/head"
DRAFT_ROWS = "proposal/token_ids"
DENSE = (BF16, FP16, FP32, FP64)
_KEPT_FORMATS = (NVFP4, FP8_ROW, *GROUPED)

Runs = tuple[RowRun, ...]


@dataclass(frozen=True)
class Sources:
    """Where each parameter of a model is read from."""

    geometry: ModelGeometry
    model: ModelSource
    base: ModelSource | None = None  # for what the model holds quantised in another format than the wanted one
    draft: ModelSource | None = None
    draft_token_ids: NDArray[Any] | None = None  # int32 [rows], of the draft head

    def choose(self, recipe: Recipe) -> tuple[dict[str, Choice], dict[str, Runs]]:
        """Choices for all parameters that are no aliases, and the rows of the matrices among them.

        InputError for a parameter that is missing or misshapen; no value is read.
        """
        choices: dict[str, Choice] = {}
        runs: dict[str, Runs] = {}
        for parameter, format, note in wanted_formats(self.geometry, recipe):
            if parameter.direct is not None:
                self._require_array(parameter)
                choices[parameter.name] = Choice(format)
            else:
                choices[parameter.name], runs[parameter.name] = self._choose(parameter, format, note)
        return choices, runs

    def array(self, parameter: Parameter) -> NDArray[Any]:
        """Values of a small parameter: float32, or int32 for ids."""
        if parameter.name == DRAFT_ROWS and self.draft_token_ids is not None:
            return self.draft_token_ids
        return self._holder(parameter).array(parameter.name, parameter.shape)

    def _require_array(self, parameter: Parameter) -> None:
        if parameter.name != DRAFT_ROWS or self.draft_token_ids is None:
            self._holder(parameter).require_array(parameter.name, parameter.shape)

    def _choose(self, parameter: Parameter, format: str, note: str) -> tuple[Choice, Runs]:
        """How a matrix becomes ``format``: quantised bytes of this format are kept, everything else is encoded."""
        holder = self._holder(parameter)
        runs = self._runs(holder, parameter)
        divisor = divisor_of(runs[0]) if format == NVFP4 and runs[0].matrix.format == NVFP4 else None
        if _is_kept(runs, format, divisor):
            return Choice(format, True, divisor, runs[0].matrix.activation_divisor, note), runs
        is_quantised = any(run.matrix.format not in DENSE for run in runs)
        if is_quantised and self.base is not None and holder is self.model:
            runs = self._runs(self.base, parameter)
        return Choice(format, note=note), runs

    def _holder(self, parameter: Parameter) -> ModelSource:
        if self.draft is not None and parameter.component in ("dflash", "dflash2"):
            return self.draft
        return self.model

    def _runs(self, source: ModelSource, parameter: Parameter) -> Runs:
        if parameter.name == DRAFT_HEAD and self.draft_token_ids is not None:
            text = self.geometry.text
            return gathered(source.matrix(OUTPUT_HEAD, text.vocab_size, text.hidden_size), self.draft_token_ids)
        rows, columns = parameter.shape
        return source.matrix(parameter.name, rows, columns)


def gathered(runs: Runs, rows: NDArray[Any]) -> Runs:
    """The given rows of a matrix, in their order."""
    begins = [0, *accumulate(run.rows for run in runs)]
    return joined(tuple(_one_row(runs, begins, int(row)) for row in rows))


def _one_row(runs: Runs, begins: list[int], row: int) -> RowRun:
    index = bisect_right(begins, row) - 1
    begin = runs[index].begin + row - begins[index]
    return RowRun(runs[index].matrix, begin, begin + 1)


def _is_kept(runs: Runs, format: str, divisor: float | None) -> bool:
    if format not in _KEPT_FORMATS or any(run.matrix.format != format for run in runs):
        return False
    return format != NVFP4 or (divisor is not None and all(divisor_of(run) == divisor for run in runs))
