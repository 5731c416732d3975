"""What a request is entitled to (spec/memory §2.6)."""

from __future__ import annotations

import pytest

from ninferd.engine.sequence import Entitlement


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "max_context", "output", "cache", "pages"),
    [
        (1, 1, 512, 1, 1, 1),
        (64, 1, 512, 1, 64, 1),
        (64, 2, 512, 2, 65, 2),
        (64, 0, 512, 0, 64, 1),
        (500, 1000, 512, 13, 512, 8),
        (512, 1000, 512, 1, 512, 8),
        # spec §2.6: 420 000 tokens of context keep a 130 000 token budget up to 290 001 prompt tokens
        (290_001, 130_000, 420_000, 130_000, 420_000, 6563),
        (290_002, 130_000, 420_000, 129_999, 420_000, 6563),
    ],
)
def test_entitlement(prompt: int, max_tokens: int, max_context: int, output: int, cache: int, pages: int) -> None:
    entitlement = Entitlement.of(prompt, max_tokens, max_context)
    assert (entitlement.output_tokens, entitlement.cache_tokens, entitlement.pages) == (output, cache, pages)
