"""What the draws of one round need, at the same addresses in every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ninferd.engine.messages import SamplingParams
from ninferd.engine.sent_buffer import SentBuffer

_FIELDS: Final = 9


class DrawColumns(NamedTuple):
    """For each lane, float64 [lanes]."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    repetition: torch.Tensor
    uniform: torch.Tensor  # its random number
    row: torch.Tensor  # of its counts


class DrawInputs:
    """What the sampling of some lanes needs beside logits and counts."""

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._buffer = SentBuffer(_FIELDS * lanes, torch.float64, device)

    def load(self, params: Sequence[SamplingParams], uniforms: npt.NDArray[np.float64], rows: Sequence[int]) -> None:
        """Fill and send. Of a greedy lane what truncates is off."""
        used = _FIELDS * len(params)
        table = self._buffer.host(used).reshape(_FIELDS, len(params))
        table[:7] = np.array([_numbers(each) for each in params], np.float64).T
        table[7], table[8] = uniforms, rows
        self._buffer.send(used)

    def columns(self, lanes: int) -> DrawColumns:
        """As they were loaded for so many lanes."""
        return DrawColumns(*self._buffer.device[: _FIELDS * lanes].view(_FIELDS, lanes).unbind())


def _numbers(p: SamplingParams) -> tuple[float, ...]:
    truncation = (p.temperature, p.top_k, p.top_p, p.min_p) if p.temperature > 0.0 else (0.0, 0, 1.0, 0.0)
    return *truncation, p.presence_penalty, p.frequency_penalty, p.repetition_penalty
