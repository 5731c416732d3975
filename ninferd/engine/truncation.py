"""From logits to the truncated distribution that is sampled, and the draw itself.

Every function works row by row on float32 [B, V] and breaks ties by value alone (equal values are kept or dropped
together), so a row's result does not depend on the rows beside it or on the order a sort leaves ties in.
"""

from __future__ import annotations

from typing import Final

import torch

_PREFIX: Final = 256  # sorted candidates tried before a full sort
_COLDEST: Final = 1e-6


def apply_temperature(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Logits less their maximum, over ``temperature`` (float64 [B], > 0); tiny ones approach the argmax, never NaN."""
    divisor = temperature.clamp(min=_COLDEST).to(logits.dtype).unsqueeze(-1)
    return (logits - logits.amax(-1, keepdim=True)) / divisor


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor, largest_k: int) -> torch.Tensor:
    """Logits below the k-th largest become -inf. ``top_k`` int64 [B], 0 is off; ``largest_k`` is its maximum."""
    vocab = logits.shape[-1]
    largest_k = min(largest_k, vocab)
    if largest_k == 0:
        return logits
    sorted_logits = logits.topk(largest_k, dim=-1).values
    rank = top_k.clamp(1, largest_k) - 1
    threshold = sorted_logits.gather(-1, rank.unsqueeze(-1))
    active = ((top_k > 0) & (top_k < vocab)).unsqueeze(-1)
    return logits.masked_fill(active & (logits < threshold), float("-inf"))


def keep_top_p(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the smallest set of most likely tokens whose mass reaches ``top_p`` (float64 [B], >= 1 is off).

    The most likely token always stays. Probabilities sum to one on entry and are not renormalised.
    """
    prefix = min(_PREFIX, probabilities.shape[-1])
    candidates = probabilities.topk(prefix, dim=-1).values
    mass = candidates.double().cumsum(-1)
    if prefix < probabilities.shape[-1] and bool(((mass[:, -1] < top_p) & (top_p < 1.0)).any()):
        candidates = probabilities.sort(dim=-1, descending=True).values
        mass = candidates.double().cumsum(-1)
    reached = (mass < top_p.unsqueeze(-1)).sum(-1).clamp(max=candidates.shape[-1] - 1)
    threshold = candidates.gather(-1, reached.unsqueeze(-1))
    active = (top_p < 1.0).unsqueeze(-1)
    return probabilities.masked_fill(active & (probabilities < threshold), 0.0)


def keep_min_p(probabilities: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Zero tokens less likely than ``min_p`` (float64 [B], 0 is off) times the most likely one."""
    threshold = probabilities.amax(-1, keepdim=True).double() * min_p.unsqueeze(-1)
    return probabilities.masked_fill(probabilities.double() < threshold, 0.0)


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Index drawn from each row of non-negative weights by inverting their running sum; int64 [B].

    ``uniforms`` float64 [B] in [0, 1). A token of weight zero is never drawn.
    """
    mass = weights.double().cumsum(-1)
    targets = uniforms.unsqueeze(-1) * mass[:, -1:]
    return torch.searchsorted(mass, targets, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)
