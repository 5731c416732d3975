"""From logits to the truncated distribution that is sampled, and the draw itself.

All functions work row by row on [B, V]. A token is kept or dropped by its weight alone (equal weights share their
fate), so a row's result depends neither on the rows beside it nor on the order in which a sort leaves ties.
"""

from __future__ import annotations

from typing import Final

import torch

_CANDIDATES: Final = 64  # sorted first; more than the largest top-k clients may ask for, and than most nuclei hold
_COLDEST: Final = 1e-6


def softmax_weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp((logits - max) / temperature), float32 [B, V], the largest is 1.

    ``temperature`` float64 [B], > 0; very small ones are taken as 1e-6, which is the argmax and never NaN.
    """
    divisor = temperature.clamp(min=_COLDEST).to(logits.dtype).unsqueeze(-1)
    return ((logits - logits.amax(-1, keepdim=True)) / divisor).exp_()


def truncate(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, *, sorts: bool
) -> torch.Tensor:
    """Weights that top-k, then top-p, then min-p keep; the others become 0.

    ``top_k`` int64 [B], 0 is off: the k largest. ``top_p`` float64 [B], >= 1 is off: of these, the smallest set of
    largest ones that has at least this share of their mass. ``min_p`` float64 [B], 0 is off: weights of at least
    this share of the largest. The largest always stays. ``sorts``: whether any row has top-k or top-p on.
    """
    threshold = min_p
    if sorts:
        threshold = torch.maximum(threshold, _rank_threshold(weights, top_k, top_p))
    return weights.masked_fill(weights < threshold.to(weights.dtype).unsqueeze(-1), 0.0)


def truncate_by_candidates(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``truncate``, looking at the few largest weights only; also for which rows that was enough, bool [B].

    It never asks the device for an answer, so it may be captured in a graph.
    """
    few = min(_CANDIDATES, weights.shape[-1])
    threshold, settled = _threshold_from(weights.topk(few, dim=-1).values, weights, top_k, top_p)
    threshold = torch.maximum(min_p, threshold).to(weights.dtype).unsqueeze(-1)
    return weights.masked_fill(weights < threshold, 0.0), settled | (few == weights.shape[-1])


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Index drawn from each row of non-negative weights by inverting their running sum; int64 [B].

    ``uniforms`` float64 [B] in [0, 1). A token of weight zero is never drawn.
    """
    mass = weights.cumsum(-1, dtype=torch.float64)
    targets = uniforms.unsqueeze(-1) * mass[:, -1:]
    return torch.searchsorted(mass, targets, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _rank_threshold(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Smallest weight that top-k and top-p keep, float64 [B]; from the first few sorted weights where they suffice."""
    vocab = weights.shape[-1]
    few = min(_CANDIDATES, vocab)
    threshold, settled = _threshold_from(weights.topk(few, dim=-1).values, weights, top_k, top_p)
    if few < vocab and not bool(settled.all()):
        threshold, _ = _threshold_from(weights.sort(dim=-1, descending=True).values, weights, top_k, top_p)
    return threshold


def _threshold_from(
    candidates: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Threshold float64 [B] from the largest weights in descending order [B, P], and whether P was enough, bool [B]."""
    last = candidates.shape[-1] - 1
    mass = candidates.cumsum(-1, dtype=torch.float64)
    limited = (top_k > 0) & (top_k < weights.shape[-1])
    kth = _at(candidates, top_k.clamp(1, last + 1) - 1) * limited
    kept_by_k = (candidates >= kth.unsqueeze(-1)).sum(-1)
    in_k = _at(mass, (kept_by_k - 1).clamp(min=0))  # rows of NaN keep nothing; their draw is not used
    total = torch.where(limited, in_k, weights.sum(-1, dtype=torch.float64))
    wanted = top_p * total
    nucleus = top_p < 1.0
    reached = (mass < wanted.unsqueeze(-1)).sum(-1)
    pth = _at(candidates, reached.clamp(max=last)) * nucleus
    settled = (~limited | ((top_k <= last) & (kept_by_k <= last))) & (~nucleus | (reached <= last))
    return torch.maximum(kth, pth).double(), settled


def _at(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """values[b, columns[b]] for every row."""
    return values.gather(-1, columns.unsqueeze(-1)).squeeze(-1)
