"""What the draws of one round need, at the same addresses in every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ninferd.engine.messages import SamplingParams
from ninferd.engine.sent_buffer import SentBuffer

_FIELDS: Final = 5


class DrawInputs:
    """A temperature, top-k, top-p, min-p and random number for each of some lanes; float64."""

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._buffer = SentBuffer(_FIELDS * lanes, torch.float64, device)

    def load(self, params: Sequence[SamplingParams], uniforms: npt.NDArray[np.float64]) -> None:
        """Fill and send. Of a greedy lane all but the temperature is off."""
        rows = [
            (p.temperature, p.top_k, p.top_p, p.min_p) if p.temperature > 0.0 else (0.0, 0, 1.0, 0.0) for p in params
        ]
        used = _FIELDS * len(rows)
        table = self._buffer.host(used).reshape(_FIELDS, len(rows))
        table[:4] = np.array(rows, np.float64).T
        table[4] = uniforms
        self._buffer.send(used)

    def columns(self, lanes: int) -> tuple[torch.Tensor, ...]:
        """Temperature, top-k, top-p, min-p and random number, [lanes] each, as they were loaded for so many lanes."""
        return self._buffer.device[: _FIELDS * lanes].view(_FIELDS, lanes).unbind()
