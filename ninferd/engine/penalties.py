"""Presence, frequency and repetition penalties, and the token counts they need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class TokenCounts:
    """Which tokens each lane has seen; rows are used only by requests with a penalty.

    Presence and frequency look at generated tokens, repetition at the prompt too (as in Hugging Face and vLLM).
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._generated = torch.zeros((rows, vocab_size), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((rows, vocab_size), dtype=torch.bool, device=device)

    def start(self, row: int, prompt: npt.NDArray[np.int64]) -> None:
        """Begin a request on a lane."""
        self._generated[row] = 0
        self._in_prompt[row] = False
        self._in_prompt[row, torch.from_numpy(prompt).to(self._in_prompt.device)] = True

    def add(self, rows: torch.Tensor, tokens: torch.Tensor, by: int = 1) -> None:
        """Count one generated token per row, or take it back; rows are distinct."""
        self._generated[rows, tokens] += by

    def penalise(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        presence: torch.Tensor,
        frequency: torch.Tensor,
        repetition: torch.Tensor,
    ) -> torch.Tensor:
        """Penalised copy of logits float32 [B, V]; the three strengths are float [B].

        Repetition (Keskar et al. 2019) divides positive and multiplies negative logits of seen tokens; then
        frequency * count and presence * [count > 0] are subtracted.
        """
        counts = self._generated[rows]
        seen = self._in_prompt[rows] | (counts > 0)
        factor = repetition.to(logits.dtype).unsqueeze(-1)
        repeated = torch.where(logits > 0, logits / factor, logits * factor)
        limit = torch.finfo(logits.dtype).max  # a factor near 0 overflows, and inf - inf would be no number
        penalised = torch.where(seen, repeated.clamp_(-limit, limit), logits)
        penalised -= frequency.to(logits.dtype).unsqueeze(-1) * counts
        penalised -= presence.to(logits.dtype).unsqueeze(-1) * (counts > 0)
        return penalised
