"""Truncation against a plain float64 loop, with ties and with more tokens than are sorted first."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninferd.engine.truncation import draw, softmax_weights, truncate


def _kept(weights: list[float], top_k: int, top_p: float, min_p: float) -> list[bool]:
    """Definition on one row; equal weights share their fate."""
    ordered = sorted(weights, reverse=True)
    threshold = ordered[top_k - 1] if 0 < top_k < len(weights) else 0.0
    if top_p < 1.0:
        candidates = [weight for weight in ordered if weight >= threshold]
        wanted = top_p * sum(candidates)
        mass, at = 0.0, 0
        while at < len(candidates) - 1 and mass + candidates[at] < wanted:
            mass += candidates[at]
            at += 1
        threshold = max(threshold, candidates[at])
    return [weight >= max(threshold, min_p * max(weights)) for weight in weights]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 63, 64, 65, 300]),
    levels=st.sampled_from([1, 3, 40, 4096]),  # few levels make many ties
    rules=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 20, 63, 64, 65, 200, 1000]),
            st.sampled_from([0.0, 0.1, 0.45, 0.9, 0.97, 1.0]),
            st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_any_mix_of_rules(seed: int, vocab: int, levels: int, rules: list[tuple[int, float, float]]) -> None:
    generator = np.random.default_rng(seed)
    # Multiples of 2^-12 up to 1: sums of them are exact, so that the loop can agree to the last token.
    weights = (4096 - generator.integers(0, levels, (len(rules), vocab))) / 4096.0
    weights[:, 0] = 1.0
    top_k, top_p, min_p = zip(*rules, strict=True)
    result = truncate(
        torch.tensor(weights, dtype=torch.float32),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
        sorts=True,
    )
    for row, rule in enumerate(rules):
        kept = _kept(weights[row].tolist(), *rule)
        expected = [weight if keep else 0.0 for weight, keep in zip(weights[row].tolist(), kept, strict=True)]
        assert result[row].tolist() == expected, rule


def test_min_p_alone_needs_no_sorting() -> None:
    weights = torch.tensor([[1.0, 0.5, 0.25, 0.1]])
    off, share = torch.zeros(1, dtype=torch.int64), torch.tensor([0.25], dtype=torch.float64)
    assert truncate(weights, off, torch.ones(1).double(), share, sorts=False).tolist() == [[1.0, 0.5, 0.25, 0.0]]


def test_softmax_weights() -> None:
    logits = torch.tensor([[1.0, 3.0, float("-inf")], [-1000.0, 2000.0, 0.0]])
    weights = softmax_weights(logits, torch.tensor([2.0, 1e-300], dtype=torch.float64))
    np.testing.assert_allclose(weights.numpy(), [[np.exp(-1.0), 1.0, 0.0], [0.0, 1.0, 0.0]], rtol=1e-6)


def test_draw_inverts_the_running_sum() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]]).expand(7, 6)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 1.0 - 2.0**-48], dtype=torch.float64)
    assert draw(weights, uniforms).tolist() == [1, 1, 3, 3, 3, 4, 4]
