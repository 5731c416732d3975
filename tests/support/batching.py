"""The same tokens in chunks and in mixed batches."""

from __future__ import annotations

import torch

from ninferd.models import Qwen3_5Text
from tests.support.models import prompt_tokens
from tests.support.sequences import Runner


def chunked(runner: Runner, tokens: list[int], sizes: list[int]) -> torch.Tensor:
    """Logits of all positions, fed in chunks of the given sizes."""
    assert sum(sizes) == len(tokens)
    parts, start = [], 0
    for size in sizes:
        parts.append(runner.step({0: tokens[start : start + size]}, all_logits=True))
        start += size
    return torch.cat(parts)


PROMPTS = [prompt_tokens(70), prompt_tokens(131)[5:], prompt_tokens(9)[3:], prompt_tokens(65)[64:]]
ROUNDS: list[dict[int, slice]] = [
    {0: slice(0, 40), 1: slice(0, 1), 2: slice(0, 5)},
    {1: slice(1, 64), 2: slice(5, 6)},
    {3: slice(0, 1), 0: slice(40, 41), 1: slice(64, 65)},
    {0: slice(41, 70), 1: slice(65, 126)},
]
"""Four sequences in mixed batches: chunks and single tokens, in changing order."""


def in_rounds(runner: Runner) -> dict[int, torch.Tensor]:
    """Logits of all positions of every sequence, run in mixed batches."""
    parts: dict[int, list[torch.Tensor]] = {index: [] for index in range(len(PROMPTS))}
    for chunks in ROUNDS:
        batch = {index: PROMPTS[index][part] for index, part in chunks.items()}
        logits = runner.step(batch, all_logits=True)
        lengths = [len(tokens) for tokens in batch.values()]
        for index, rows in zip(batch, torch.split(logits, lengths), strict=True):
            parts[index].append(rows)
    return {index: torch.cat(rows) for index, rows in parts.items()}


def alone(model: Qwen3_5Text, index: int) -> torch.Tensor:
    """Logits of all positions of a sequence by itself, in one batch."""
    return Runner.create(model, 1, 140, seed=index).step({0: PROMPTS[index]}, all_logits=True)
